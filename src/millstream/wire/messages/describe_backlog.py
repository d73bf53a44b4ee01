"""DescribeBacklog: a group coordinator asks a leader for the records after committed offsets.

This API is Millstream's own.
"""

from __future__ import annotations

from typing import Final

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int16, int32, int64, uuid
from millstream.wire.schema import Message, message, struct

#: Special values of `headroom_ms`.
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
            #: From an earlier response: the offset, and the timestamp of the first record there. -1
            #: if the coordinator has none.
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
            #: The committed offset, or the log start offset if that is higher.
            offset: int = int64(default=-1)
            end_offset: int = int64(default=-1)
            #: Also false if there are no records between the offset and the end.
            has_unread: bool = boolean()
            #: Timestamp of the first unread record; -1 if unknown.
            first_timestamp: int = int64(default=-1)
            headroom_ms: int = int64(default=HEADROOM_UNLIMITED)

        topic_id: bytes = uuid()
        positions: list[Position] = array(Position)

    topics: list[Topic] = array(Topic)
