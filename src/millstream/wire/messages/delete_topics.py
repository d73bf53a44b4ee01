"""DeleteTopics: deletes topics, by name up to version 5, by name or id from version 6."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, nullable_string, string_array, uuid
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DELETE_TOPICS, versions=(1, 6))
class DeleteTopicsRequest(Message):
    @struct
    class Topic:
        name: str | None = nullable_string()
        topic_id: bytes = uuid()

    topics: list[Topic] = array(Topic, since=6)
    topic_names: list[str] = string_array(until=5, ignorable=True)
    timeout_ms: int = int32()


@message(ApiKey.DELETE_TOPICS, versions=(1, 6))
class DeleteTopicsResponse(Message):
    @struct
    class Topic:
        name: str | None = nullable_string(nullable_since=6)
        topic_id: bytes = uuid(since=6, ignorable=True)
        error_code: int = int16()
        error_message: str | None = nullable_string(since=5, ignorable=True)

    throttle_time_ms: int = int32()
    responses: list[Topic] = array(Topic)
