"""CreatePartitions: raises the partition count of topics."""

from __future__ import annotations

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
)
from millstream.wire.schema import Message, message, struct


@message(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
class CreatePartitionsRequest(Message):
    @struct
    class Topic:
        @struct
        class Assignment:
            broker_ids: list[int] = int32_array()

        name: str = string()
        count: int = int32()
        assignments: list[Assignment] | None = nullable_array(Assignment)

    topics: list[Topic] = array(Topic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@message(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
class CreatePartitionsResponse(Message):
    @struct
    class Topic:
        name: str = string()
        error_code: int = int16()
        error_message: str | None = nullable_string()

    throttle_time_ms: int = int32()
    results: list[Topic] = array(Topic)
