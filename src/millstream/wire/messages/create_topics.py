"""CreateTopics: creates topics, by partition count or by an assignment of replicas.

From version 4 a partition count or replication factor of -1 means the broker's default.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    nullable_array,
    nullable_string,
    string,
    uuid,
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.CREATE_TOPICS, versions=(2, 7))
class CreateTopicsRequest(Message):
    @struct
    class Topic:
        @struct
        class Assignment:
            partition_index: int = int32()
            broker_ids: list[int] = int32_array()

        @struct
        class Config:
            name: str = string()
            value: str | None = nullable_string()

        name: str = string()
        num_partitions: int = int32()
        replication_factor: int = int16()
        assignments: list[Assignment] = array(Assignment)
        configs: list[Config] = array(Config)

    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean()


@message(ApiKey.CREATE_TOPICS, versions=(2, 7))
class CreateTopicsResponse(Message):
    @struct
    class Topic:
        @struct
        class Config:
            name: str = string()
            value: str | None = nullable_string()
            read_only: bool = boolean()
            config_source: int = int8(default=-1)
            is_sensitive: bool = boolean()

        name: str = string()
        topic_id: bytes = uuid(since=7, ignorable=True)
        error_code: int = int16()
        error_message: str | None = nullable_string()
        topic_config_error_code: int = int16(tag=0, since=5, ignorable=True)
        num_partitions: int = int32(since=5, default=-1, ignorable=True)
        replication_factor: int = int16(since=5, default=-1, ignorable=True)
        configs: list[Config] | None = nullable_array(Config, since=5, ignorable=True)

    throttle_time_ms: int = int32()
    topics: list[Topic] = array(Topic)
