"""OffsetForLeaderEpoch: the end offset of a leader epoch in the leader's log.

Followers and consumers use it to find the offset at which their log diverges from the leader's.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int64, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
class OffsetForLeaderEpochRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition: int = int32()
            current_leader_epoch: int = int32(default=-1)
            leader_epoch: int = int32()

        topic: str = string()
        partitions: list[Partition] = array(Partition)

    replica_id: int = int32(since=3, default=-2, ignorable=True)
    topics: list[Topic] = array(Topic)


@message(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
class OffsetForLeaderEpochResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            error_code: int = int16()
            partition: int = int32()
            leader_epoch: int = int32(default=-1)
            end_offset: int = int64(default=-1)

        topic: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)
