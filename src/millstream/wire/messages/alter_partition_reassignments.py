"""AlterPartitionReassignments: moves replicas to other brokers, or cancels such a move."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int16,
    int32,
    nullable_int32_array,
    nullable_string,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1))
class AlterPartitionReassignmentsRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            replicas: list[int] | None = nullable_int32_array()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    topics: list[Topic] = array(Topic)


@message(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 1))
class AlterPartitionReassignmentsResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = nullable_string()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(since=1, default=True, ignorable=True)
    error_code: int = int16()
    error_message: str | None = nullable_string()
    responses: list[Topic] = array(Topic)
