"""ListPartitionReassignments: the partitions that are being reassigned."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    int16,
    int32,
    int32_array,
    nullable_array,
    nullable_string,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0))
class ListPartitionReassignmentsRequest(Message):
    @struct
    class Topic:
        name: str = string()
        partition_indexes: list[int] = int32_array()

    timeout_ms: int = int32(default=60000)
    topics: list[Topic] | None = nullable_array(Topic)


@message(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0))
class ListPartitionReassignmentsResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            replicas: list[int] = int32_array()
            adding_replicas: list[int] = int32_array()
            removing_replicas: list[int] = int32_array()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    topics: list[Topic] = array(Topic)
