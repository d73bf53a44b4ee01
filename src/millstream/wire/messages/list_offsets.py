"""ListOffsets: the offset of a timestamp or of a special timestamp.

Special timestamps: -1 latest, -2 earliest, -3 largest timestamp (from version 7), -4 earliest local
(8), -5 latest tiered (9), -6 earliest pending upload (11).
"""

from __future__ import annotations

from typing import Final

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int8, int16, int32, int64, string
from millstream.wire.schema import Message, message, struct

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6


@message(ApiKey.LIST_OFFSETS, versions=(1, 11))
class ListOffsetsRequest(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            current_leader_epoch: int = int32(since=4, default=-1, ignorable=True)
            timestamp: int = int64()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    replica_id: int = int32(default=-1)
    isolation_level: int = int8(since=2)
    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32(since=10, ignorable=True)


@message(ApiKey.LIST_OFFSETS, versions=(1, 11))
class ListOffsetsResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            error_code: int = int16()
            timestamp: int = int64(default=-1)
            offset: int = int64(default=-1)
            leader_epoch: int = int32(since=4, default=-1)

        name: str = string()
        partitions: list[Partition] = array(Partition)

    throttle_time_ms: int = int32(since=2, ignorable=True)
    topics: list[Topic] = array(Topic)
