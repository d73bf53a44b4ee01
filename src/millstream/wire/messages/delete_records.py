"""DeleteRecords: advances the log start offset of partitions; -1 is the high watermark."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int64, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DELETE_RECORDS, versions=(0, 2))
class DeleteRecordsRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            offset: int = int64()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32()


@message(ApiKey.DELETE_RECORDS, versions=(0, 2))
class DeleteRecordsResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            low_watermark: int = int64()
            error_code: int = int16()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)
