"""Metadata: brokers, and the partitions of topics with their leaders.

`topics` of None in the request means all topics. Version 0 has no None: there an empty list means
all topics. From version 10 a request may name a topic by id, with a name of None. That is usable
from version 12, in which the name in the response may be null too.
"""

from __future__ import annotations

from typing import Final

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int16,
    int32,
    int32_array,
    nullable_array,
    nullable_string,
    string,
    uuid,
)
from millstream.wire.schema import Message, message, struct

#: The authorized operations of a response without them.
OPERATIONS_OMITTED: Final = -(2**31)


@message(ApiKey.METADATA, versions=(0, 13))
class MetadataRequest(Message):
    @struct
    class Topic:
        topic_id: bytes = uuid(since=10, ignorable=True)
        name: str | None = nullable_string(nullable_since=10)

    topics: list[Topic] | None = nullable_array(Topic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


@message(ApiKey.METADATA, versions=(0, 13))
class MetadataResponse(Message):
    @struct
    class Broker:
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = nullable_string(since=1, ignorable=True)

    @struct
    class Topic:
        @struct
        class Partition:
            error_code: int = int16()
            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32(since=7, default=-1, ignorable=True)
            replica_nodes: list[int] = int32_array()
            isr_nodes: list[int] = int32_array()
            offline_replicas: list[int] = int32_array(since=5, ignorable=True)

        error_code: int = int16()
        name: str | None = nullable_string(nullable_since=12)
        topic_id: bytes = uuid(since=10, ignorable=True)
        is_internal: bool = boolean(since=1, ignorable=True)
        partitions: list[Partition] = array(Partition)
        topic_authorized_operations: int = int32(since=8, default=OPERATIONS_OMITTED)

    throttle_time_ms: int = int32(since=3, ignorable=True)
    brokers: list[Broker] = array(Broker)
    cluster_id: str | None = nullable_string(since=2, ignorable=True)
    controller_id: int = int32(since=1, default=-1, ignorable=True)
    topics: list[Topic] = array(Topic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=OPERATIONS_OMITTED)
    error_code: int = int16(since=13, ignorable=True)
