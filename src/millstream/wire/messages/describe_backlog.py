"""DescribeBacklog, an API of Millstream's own: a group's coordinator asks a partition's leader what
there is to read after an offset."""

from __future__ import annotations

from typing import Final

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int16, int32, int64, uuid
from millstream.wire.schema import Message, message, struct

#: Values of `headroom_ms` that are no times.
HEADROOM_UNLIMITED: Final = -1
HEADROOM_UNKNOWN: Final = -2


@message(ApiKey.DESCRIBE_BACKLOG, versions=(0, 0))
class DescribeBacklogRequest(Message):
    @struct
    class Topic:
        @struct
        class Position:
            partition_index: int = int32()
            committed_offset: int = int64()
            #: What the leader said before: the offset it looked at, and the time of the first
            #: record there. -1 if the coordinator does not remember any.
            known_offset: int = int64(default=-1)
            known_timestamp: int = int64(default=-1)

        topic_id: bytes = uuid()
        positions: list[Position] = array(Position)

    topics: list[Topic] = array(Topic)


@message(ApiKey.DESCRIBE_BACKLOG, versions=(0, 0))
class DescribeBacklogResponse(Message):
    @struct
    class Topic:
        @struct
        class Position:
            partition_index: int = int32()
            committed_offset: int = int64()
            error_code: int = int16()
            #: The committed offset, or the start of the log if that is higher.
            offset: int = int64(default=-1)
            end_offset: int = int64(default=-1)
            #: False also where the offsets up to the end hold no records.
            has_unread: bool = boolean()
            #: Time of the first unread record; -1 if it is not known.
            first_timestamp: int = int64(default=-1)
            headroom_ms: int = int64(default=HEADROOM_UNLIMITED)

        topic_id: bytes = uuid()
        positions: list[Position] = array(Position)

    topics: list[Topic] = array(Topic)
