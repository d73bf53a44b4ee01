"""DescribeTopicPartitions: the partitions of topics, in pages.

A response that reached the limit has in `next_cursor` the position at which the next request
continues.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int16,
    int32,
    int32_array,
    nullable_int32_array,
    nullable_string,
    nullable_struct,
    string,
    uuid,
)
from millstream.wire.messages.metadata import OPERATIONS_OMITTED
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0))
class DescribeTopicPartitionsRequest(Message):
    @struct
    class Topic:
        name: str = string()

    @struct
    class Cursor:
        topic_name: str = string()
        partition_index: int = int32()

    topics: list[Topic] = array(Topic)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = nullable_struct(Cursor)


@message(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0))
class DescribeTopicPartitionsResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            error_code: int = int16()
            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32(default=-1)
            replica_nodes: list[int] = int32_array()
            isr_nodes: list[int] = int32_array()
            eligible_leader_replicas: list[int] | None = nullable_int32_array()
            last_known_elr: list[int] | None = nullable_int32_array()
            offline_replicas: list[int] = int32_array()

        error_code: int = int16()
        name: str | None = nullable_string()
        topic_id: bytes = uuid()
        is_internal: bool = boolean()
        partitions: list[Partition] = array(Partition)
        topic_authorized_operations: int = int32(default=OPERATIONS_OMITTED)

    @struct
    class Cursor:
        topic_name: str = string()
        partition_index: int = int32()

    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)
    next_cursor: Cursor | None = nullable_struct(Cursor)
