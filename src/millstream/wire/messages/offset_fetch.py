"""OffsetFetch: the committed offsets of one group (up to version 7) or of many (from version 8).

From version 2 topics of None mean all committed offsets of the group. From version 10 topics have
ids. A partition without a committed offset has offset -1 and empty metadata.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int16,
    int32,
    int32_array,
    int64,
    nullable_array,
    nullable_string,
    string,
    uuid,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.OFFSET_FETCH, versions=(1, 10))
class OffsetFetchRequest(Message):
    @struct
    class Topic:
        name: str = string()
        partition_indexes: list[int] = int32_array()

    @struct
    class Group:
        @struct
        class Topic:
            name: str = string(until=9, ignorable=True)
            topic_id: bytes = uuid(since=10, ignorable=True)
            partition_indexes: list[int] = int32_array()

        group_id: str = string()
        member_id: str | None = nullable_string(since=9, ignorable=True)
        member_epoch: int = int32(since=9, default=-1, ignorable=True)
        topics: list[Topic] | None = nullable_array(Topic)

    group_id: str = string(until=7)
    topics: list[Topic] | None = nullable_array(Topic, until=7, nullable_since=2)
    groups: list[Group] = array(Group, since=8)
    require_stable: bool = boolean(since=7)


@message(ApiKey.OFFSET_FETCH, versions=(1, 10))
class OffsetFetchResponse(Message):
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32(since=5, default=-1, ignorable=True)
            metadata: str | None = nullable_string()
            error_code: int = int16()

        name: str = string()
        partitions: list[Partition] = array(Partition)

    @struct
    class Group:
        @struct
        class Topic:
            @struct
            class Partition:
                partition_index: int = int32()
                committed_offset: int = int64()
                committed_leader_epoch: int = int32(default=-1)
                metadata: str | None = nullable_string()
                error_code: int = int16()

            name: str = string(until=9, ignorable=True)
            topic_id: bytes = uuid(since=10, ignorable=True)
            partitions: list[Partition] = array(Partition)

        group_id: str = string()
        topics: list[Topic] = array(Topic)
        error_code: int = int16()

    throttle_time_ms: int = int32(since=3, ignorable=True)
    topics: list[Topic] = array(Topic, until=7)
    error_code: int = int16(since=2, until=7, ignorable=True)
    groups: list[Group] = array(Group, since=8)
