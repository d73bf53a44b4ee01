"""Fetch: reads record batches from partitions, for consumers and followers.

Topics have names up to version 12 and ids from version 13. A follower sends its id in `replica_id`
up to version 14 and in `replica_state` from version 15. In a response `records` may be anything
with a length.
"""

from __future__ import annotations

from typing import Final

from millstream.model.sentinel import INT32_MAX, INT64_MAX
from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    nullable_array,
    nullable_string,
    records,
    string,
    tagged_struct,
    uuid,
)
from millstream.wire.schema import Message, Segment, message, struct

#: The high watermark of a follower that does not send it.
HIGH_WATERMARK_UNKNOWN: Final = INT64_MAX
#: The session id of a request or response without a session (KIP-227).
NO_SESSION: Final = 0
#: The session epoch of a full request that opens a session.
INITIAL_EPOCH: Final = 0
#: The session epoch of a full request that opens no session, and closes the one it names.
FINAL_EPOCH: Final = -1


@message(ApiKey.FETCH, versions=(4, 18))
class FetchRequest(Message):
    @struct
    class ReplicaState:
        replica_id: int = int32(default=-1)
        replica_epoch: int = int64(default=-1)

    @struct
    class Topic:
        @struct
        class Partition:
            partition: int = int32()
            current_leader_epoch: int = int32(since=9, default=-1, ignorable=True)
            fetch_offset: int = int64()
            last_fetched_epoch: int = int32(since=12, default=-1)
            log_start_offset: int = int64(since=5, default=-1, ignorable=True)
            partition_max_bytes: int = int32()
            replica_directory_id: bytes = uuid(tag=0, since=17, ignorable=True)
            high_watermark: int = int64(
                tag=1, since=18, default=HIGH_WATERMARK_UNKNOWN, ignorable=True
            )

        topic: str = string(until=12, ignorable=True)
        topic_id: bytes = uuid(since=13, ignorable=True)
        partitions: list[Partition] = array(Partition)

    @struct
    class ForgottenTopic:
        topic: str = string(until=12, ignorable=True)
        topic_id: bytes = uuid(since=13, ignorable=True)
        partitions: list[int] = int32_array()

    cluster_id: str | None = nullable_string(tag=0, since=12, ignorable=True)
    replica_id: int = int32(until=14, default=-1)
    replica_state: ReplicaState | None = tagged_struct(ReplicaState, tag=1, since=15)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=INT32_MAX)
    isolation_level: int = int8()
    session_id: int = int32(since=7, ignorable=True)
    session_epoch: int = int32(since=7, default=FINAL_EPOCH, ignorable=True)
    topics: list[Topic] = array(Topic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7)
    rack_id: str = string(since=11, ignorable=True)


@message(ApiKey.FETCH, versions=(4, 18))
class FetchResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            @struct
            class EpochEndOffset:
                epoch: int = int32(default=-1)
                end_offset: int = int64(default=-1)

            @struct
            class Leader:
                leader_id: int = int32(default=-1)
                leader_epoch: int = int32(default=-1)

            @struct
            class SnapshotId:
                end_offset: int = int64(default=-1)
                epoch: int = int32(default=-1)

            @struct
            class AbortedTransaction:
                producer_id: int = int64()
                first_offset: int = int64()

            partition_index: int = int32()
            error_code: int = int16()
            high_watermark: int = int64()
            last_stable_offset: int = int64(default=-1)
            log_start_offset: int = int64(since=5, default=-1, ignorable=True)
            diverging_epoch: EpochEndOffset | None = tagged_struct(EpochEndOffset, tag=0, since=12)
            current_leader: Leader | None = tagged_struct(Leader, tag=1, since=12)
            snapshot_id: SnapshotId | None = tagged_struct(SnapshotId, tag=2, since=12)
            aborted_transactions: list[AbortedTransaction] | None = nullable_array(
                AbortedTransaction
            )
            preferred_read_replica: int = int32(since=11, default=-1)
            records: Segment | None = records()

        topic: str = string(until=12, ignorable=True)
        topic_id: bytes = uuid(since=13, ignorable=True)
        partitions: list[Partition] = array(Partition)

    @struct
    class NodeEndpoint:
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = nullable_string()

    throttle_time_ms: int = int32()
    error_code: int = int16(since=7, ignorable=True)
    session_id: int = int32(since=7)
    responses: list[Topic] = array(Topic)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, tag=0, since=16)
