"""OffsetCommit: commits offsets of a group.

Topics have names up to version 9 and ids from version 10. Members of a consumer group (KIP-848) may
use version 9 or later, and send their member epoch as the generation.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int64, nullable_string, string, uuid
from millstream.wire.schema import Message, message, struct


@message(ApiKey.OFFSET_COMMIT, versions=(2, 10))
class OffsetCommitRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32(since=6, default=-1, ignorable=True)
            committed_metadata: str | None = nullable_string()

        name: str = string(until=9, ignorable=True)
        topic_id: bytes = uuid(since=10, ignorable=True)
        partitions: list[Partition] = array(Partition)

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = nullable_string(since=7)
    retention_time_ms: int = int64(until=4, default=-1, ignorable=True)
    topics: list[Topic] = array(Topic)


@message(ApiKey.OFFSET_COMMIT, versions=(2, 10))
class OffsetCommitResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            error_code: int = int16()

        name: str = string(until=9, ignorable=True)
        topic_id: bytes = uuid(since=10, ignorable=True)
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[Topic] = array(Topic)
