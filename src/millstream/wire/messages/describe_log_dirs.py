"""DescribeLogDirs: the data directories of a broker and the logs in them.

`topics` of None in the request means all partitions.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int16,
    int32,
    int32_array,
    int64,
    nullable_array,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5))
class DescribeLogDirsRequest(Message):
    @struct
    class Topic:
        topic: str = string()
        partitions: list[int] = int32_array()

    topics: list[Topic] | None = nullable_array(Topic)


@message(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5))
class DescribeLogDirsResponse(Message):
    @struct
    class Result:
        @struct
        class Topic:
            @struct
            class Partition:
                partition_index: int = int32()
                partition_size: int = int64()
                offset_lag: int = int64()
                is_future_key: bool = boolean()

            name: str = string()
            partitions: list[Partition] = array(Partition)

        error_code: int = int16()
        log_dir: str = string()
        topics: list[Topic] = array(Topic)
        total_bytes: int = int64(since=4, default=-1, ignorable=True)
        usable_bytes: int = int64(since=4, default=-1, ignorable=True)
        is_cordoned: bool = boolean(since=5, ignorable=True)

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3, ignorable=True)
    results: list[Result] = array(Result)
