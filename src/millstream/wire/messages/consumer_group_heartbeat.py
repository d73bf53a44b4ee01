"""ConsumerGroupHeartbeat: joins, leaves and keeps alive a member of a consumer group (KIP-848).

In the request None means "unchanged since the last heartbeat"; the first heartbeat sets everything.
The member epoch is 0 to join, -1 to leave, and -2 to leave temporarily as a static member. In the
response an assignment of None means "unchanged".
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    int16,
    int32,
    int32_array,
    nullable_array,
    nullable_string,
    nullable_string_array,
    nullable_struct,
    string,
    uuid,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1))
class ConsumerGroupHeartbeatRequest(Message):
    @struct
    class TopicPartitions:
        topic_id: bytes = uuid()
        partitions: list[int] = int32_array()

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = nullable_string()
    rack_id: str | None = nullable_string()
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = nullable_string_array()
    subscribed_topic_regex: str | None = nullable_string(since=1)
    server_assignor: str | None = nullable_string()
    topic_partitions: list[TopicPartitions] | None = nullable_array(TopicPartitions)


@message(ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1))
class ConsumerGroupHeartbeatResponse(Message):
    @struct
    class Assignment:
        @struct
        class TopicPartitions:
            topic_id: bytes = uuid()
            partitions: list[int] = int32_array()

        topic_partitions: list[TopicPartitions] = array(TopicPartitions)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    member_id: str | None = nullable_string()
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nullable_struct(Assignment)
