"""The consumer protocol: metadata and assignments in JoinGroup and SyncGroup of consumers.

The metadata of a member in JoinGroup is a `ConsumerProtocolSubscription`, its assignment in
SyncGroup is a `ConsumerProtocolAssignment`, each after its version:

    decode_prefixed(ConsumerProtocolSubscription, protocol.metadata).topics

Clients write this data, and brokers only inspect it. Data that cannot be decoded (other group
types, an empty assignment, a client's mistake) does not fail the group.
"""

from __future__ import annotations

from millstream.wire.field import (
    array,
    int32,
    int32_array,
    nullable_octets,
    nullable_string,
    string,
    string_array,
)
from millstream.wire.schema import Versioned, struct, versioned


@versioned(versions=(0, 3), is_open=True)
class ConsumerProtocolSubscription(Versioned):
    @struct
    class TopicPartitions:
        topic: str = string()
        partitions: list[int] = int32_array()

    topics: list[str] = string_array()
    user_data: bytes | None = nullable_octets()
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, since=1, ignorable=True)
    generation_id: int = int32(since=2, default=-1, ignorable=True)
    rack_id: str | None = nullable_string(since=3, ignorable=True)


@versioned(versions=(0, 3), is_open=True)
class ConsumerProtocolAssignment(Versioned):
    @struct
    class TopicPartitions:
        topic: str = string()
        partitions: list[int] = int32_array()

    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = nullable_octets()
