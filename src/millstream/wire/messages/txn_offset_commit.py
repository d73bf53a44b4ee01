"""TxnOffsetCommit: commits offsets of a group as part of a transaction.

Version 5 equals version 4, for producers of transaction version 2, which do not send
AddOffsetsToTxn.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int64, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5))
class TxnOffsetCommitRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32(since=2, default=-1, ignorable=True)
            committed_metadata: str | None = nullable_string()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(since=3, default=-1)
    member_id: str = string(since=3)
    group_instance_id: str | None = nullable_string(since=3)
    topics: list[Topic] = array(Topic)


@message(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5))
class TxnOffsetCommitResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            error_code: int = int16()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)
