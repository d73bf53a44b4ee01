"""OffsetDelete: deletes the committed offsets of a group for some partitions."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.OFFSET_DELETE, versions=(0, 0))
class OffsetDeleteRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    group_id: str = string()
    topics: list[Topic] = array(Topic)


@message(ApiKey.OFFSET_DELETE, versions=(0, 0))
class OffsetDeleteResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            error_code: int = int16()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)
