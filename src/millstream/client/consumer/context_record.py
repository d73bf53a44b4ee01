"""Records whose deserializers get a context: the topic and the headers.

`record_type_for` chooses the class of a consumer's records. Only a consumer with such a
deserializer has `ContextRecord`s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Message

from millstream.client.consumer.record_kernel import DecodedRecord, Record, record_type
from millstream.client.error import RegistryUnavailable, SerializationError
from millstream.client.serde_context import LoadingSerde, RecordContext, takes_context
from millstream.client.serializer import AnyDeserializer, deserialize_of


class ContextRecord(DecodedRecord):
    """A record that is decoded with its topic and headers."""

    __slots__ = ()

    def _decoded(self, decode: Any, data: bytes | None, part: str) -> Any:
        if data is None or decode is None:
            return data
        context = RecordContext(self.topic, "key" if part == "key" else "value", self.headers)
        try:
            return decode(data, context)
        except RegistryUnavailable:
            raise
        except Exception as error:
            raise SerializationError(
                f"The {part} of {self.topic}-{self.partition} at offset {self.offset} cannot be "
                f"decoded: {error}. Its bytes are in raw_{part}."
            ) from error


def record_type_for(
    key: AnyDeserializer[Any] | None, value: AnyDeserializer[Any] | None
) -> type[Record]:
    """Return the class of the records of a consumer with these deserializers."""
    if not takes_context(key) and not takes_context(value):
        return record_type(
            deserialize_of("key_deserializer", key), deserialize_of("value_deserializer", value)
        )
    decoders = {
        "_decode_key": _in_context("key_deserializer", key),
        "_decode_value": _in_context("value_deserializer", value),
    }
    return type("Record", (ContextRecord,), {"__slots__": (), **decoders})


def loader_for(
    key: AnyDeserializer[Any] | None, value: AnyDeserializer[Any] | None
) -> Callable[[list[Message]], None] | None:
    """Return a function that loads what the deserializers need for messages; None if nothing."""
    keys: LoadingSerde | None = key if isinstance(key, LoadingSerde) else None
    values: LoadingSerde | None = value if isinstance(value, LoadingSerde) else None
    if keys is None and values is None:
        return None

    def load(messages: list[Message]) -> None:
        for message in messages:
            topic = message.topic() or ""
            headers: Any = message.headers() or []
            if keys is not None and (data := message.key()) is not None:
                keys.load(_bytes(data), RecordContext(topic, "key", headers))
            if values is not None and (data := message.value()) is not None:
                values.load(_bytes(data), RecordContext(topic, "value", headers))

    return load


def _in_context(name: str, deserializer: AnyDeserializer[Any] | None) -> Any:
    """Return the function that a class of records has for a deserializer."""
    if takes_context(deserializer):
        return staticmethod(deserializer.deserialize)
    decode = deserialize_of(name, deserializer)
    return None if decode is None else staticmethod(lambda data, _context: decode(data))


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
