"""ElectLeaders: elects preferred replicas, or any live replica if none is in sync."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    int8,
    int16,
    int32,
    int32_array,
    nullable_array,
    nullable_string,
    string,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.ELECT_LEADERS, versions=(0, 2))
class ElectLeadersRequest(Message):
    @struct
    class Topic:
        topic: str = string()
        partitions: list[int] = int32_array()

    election_type: int = int8(since=1)
    topic_partitions: list[Topic] | None = nullable_array(Topic)
    timeout_ms: int = int32(default=60000)


@message(ApiKey.ELECT_LEADERS, versions=(0, 2))
class ElectLeadersResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_id: int = int32()
            error_code: int = int16()
            error_message: str | None = nullable_string()

        topic: str = string()
        partition_result: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[Topic] = array(Topic)
