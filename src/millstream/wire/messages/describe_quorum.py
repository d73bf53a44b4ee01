"""DescribeQuorum: the leader of the metadata log, and the progress of its replicas.

Kafka keeps its metadata in partition 0 of the topic `__cluster_metadata`, which a request names.
"""

from __future__ import annotations

from typing import Final

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int64, nullable_string, string, uint16, uuid
from millstream.wire.schema import Message, message, struct

METADATA_TOPIC: Final = "__cluster_metadata"


@message(ApiKey.DESCRIBE_QUORUM, versions=(0, 2))
class DescribeQuorumRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()

        topic_name: str = string()
        partitions: list[Partition] = array(Partition)

    topics: list[Topic] = array(Topic)


@struct
class ReplicaState:
    """The progress of one replica of the metadata; -1 is unknown."""

    replica_id: int = int32()
    replica_directory_id: bytes = uuid(since=2, ignorable=True)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(since=1, default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64(since=1, default=-1, ignorable=True)


@message(ApiKey.DESCRIBE_QUORUM, versions=(0, 2))
class DescribeQuorumResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            error_code: int = int16()
            error_message: str | None = nullable_string(since=2, ignorable=True)
            leader_id: int = int32()
            leader_epoch: int = int32()
            high_watermark: int = int64()
            current_voters: list[ReplicaState] = array(ReplicaState)
            observers: list[ReplicaState] = array(ReplicaState)

        topic_name: str = string()
        partitions: list[Partition] = array(Partition)

    @struct
    class Node:
        @struct
        class Listener:
            name: str = string()
            host: str = string()
            port: int = uint16()

        node_id: int = int32()
        listeners: list[Listener] = array(Listener)

    error_code: int = int16()
    error_message: str | None = nullable_string(since=2, ignorable=True)
    topics: list[Topic] = array(Topic)
    nodes: list[Node] = array(Node, since=2, ignorable=True)
