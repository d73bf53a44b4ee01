"""Keys and values as bytes and back: JSON, msgspec, Avro, Protobuf, or anything with `serialize`
and `deserialize`.

Producers and consumers use the same serializers. None stays None: in a compacted topic it deletes
the key. A serializer imports the packages of its format when it is created.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from millstream.client.error import SerializationError, UsageError

_EXTRAS: Final = {"fastavro": "avro", "google.protobuf": "protobuf"}


class Serializer(Protocol):
    """Encodes and decodes values of one kind."""

    def serialize(self, value: Any, /) -> bytes:
        """Return the value as bytes."""

    def deserialize(self, data: bytes, /) -> Any:
        """Return the value of these bytes."""


class JsonSerializer:
    """JSON with the standard library: dicts, lists, strings, numbers, booleans.

    >>> JsonSerializer().serialize({"apples": 2})
    b'{"apples":2}'
    >>> JsonSerializer().deserialize(b'{"apples":2}')
    {'apples': 2}
    """

    def __init__(self) -> None:
        self._encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def serialize(self, value: Any, /) -> bytes:
        return self._encoder.encode(value).encode()

    def deserialize(self, data: bytes, /) -> Any:
        return json.loads(data)


class MsgspecSerializer:
    """A type that msgspec knows (Struct, dataclass, TypedDict, ...), validated when decoded.

    >>> class Order(msgspec.Struct):
    ...     customer: str
    ...     apples: int
    >>> orders = MsgspecSerializer(Order)
    >>> orders.serialize(Order("alice", 2))
    b'{"customer":"alice","apples":2}'
    >>> orders.deserialize(b'{"customer":"bob","apples":3}')
    Order(customer='bob', apples=3)
    """

    def __init__(self, kind: Any = Any, *, format: Literal["json", "msgpack"] = "json") -> None:  # noqa: A002
        if format == "json":
            self.serialize: Any = msgspec.json.Encoder().encode
            self.deserialize: Any = msgspec.json.Decoder(kind).decode
        elif format == "msgpack":
            self.serialize = msgspec.msgpack.Encoder().encode
            self.deserialize = msgspec.msgpack.Decoder(kind).decode
        else:
            raise UsageError(f"format={format!r} is unknown: use 'json' or 'msgpack'.")


class AvroSerializer:
    """Avro's binary encoding of one schema, without a header. Needs `millstream[avro]`.

    >>> schema = {
    ...     "type": "record",
    ...     "name": "Order",
    ...     "fields": [{"name": "customer", "type": "string"}, {"name": "apples", "type": "int"}],
    ... }
    >>> orders = AvroSerializer(schema)
    >>> orders.deserialize(orders.serialize({"customer": "alice", "apples": 2}))
    {'customer': 'alice', 'apples': 2}

    `writer_schema` is the schema that the data was written with, if that is another version.
    """

    def __init__(
        self, schema: Mapping[str, Any] | str, *, writer_schema: Mapping[str, Any] | None = None
    ) -> None:
        self._avro = _import("fastavro", "AvroSerializer")
        self._schema = self._avro.parse_schema(schema)
        self._writer = self._avro.parse_schema(writer_schema) if writer_schema else self._schema

    def serialize(self, value: Any, /) -> bytes:
        output = io.BytesIO()
        self._avro.schemaless_writer(output, self._schema, value, strict=True)
        return output.getvalue()

    def deserialize(self, data: bytes, /) -> Any:
        source = io.BytesIO(data)
        value = self._avro.schemaless_reader(source, self._writer, self._schema)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes are left after the Avro value")
        return value


class ProtobufSerializer:
    """Messages of one generated Protobuf class, without a header. Needs `millstream[protobuf]`.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> names = ProtobufSerializer(StringValue)
    >>> names.deserialize(names.serialize(StringValue(value="alice"))).value
    'alice'
    """

    def __init__(self, message: type[Any]) -> None:
        base = _import("google.protobuf", "ProtobufSerializer", "google.protobuf.message").Message
        if not (isinstance(message, type) and issubclass(message, base)):
            raise UsageError(f"{message!r} is not a class that the Protobuf compiler generated.")
        self._message = message

    def serialize(self, value: Any, /) -> bytes:
        if not isinstance(value, self._message):
            raise TypeError(f"expected a {self._message.__name__}, got a {type(value).__name__}")
        data: bytes = value.SerializeToString()
        return data

    def deserialize(self, data: bytes, /) -> Any:
        return self._message.FromString(data)


def encoded(serializer: Serializer, value: Any, part: str, topic: str) -> bytes | None:
    """Return the value as bytes, or raise a SerializationError with topic and type."""
    if value is None:
        return None
    try:
        return serializer.serialize(value)
    except Exception as error:
        raise SerializationError(
            f"The {part} for topic {topic!r}, a {type(value).__name__}, cannot be encoded by "
            f"{type(serializer).__name__}: {error}."
        ) from error


def deserialize_of(deserializer: Serializer | None) -> Callable[[bytes], Any] | None:
    """Return the function that decodes bytes; None without a deserializer."""
    return None if deserializer is None else deserializer.deserialize


def no_serializer_error(part: str, value: object, topic: str) -> SerializationError:
    """Return the error for a value that is not bytes where there is no serializer."""
    return SerializationError(
        f"The {part} for topic {topic!r} is a {type(value).__name__}: pass bytes, a string or "
        f"None, or create the producer with {part}_serializer=..., for example JsonSerializer()."
    )


def _import(package: str, who: str, module: str | None = None) -> Any:
    try:
        return importlib.import_module(module or package)
    except ImportError as error:
        extra = _EXTRAS[package]
        raise UsageError(
            f"{who} needs {package}, which is not installed: pip install 'millstream[{extra}]'."
        ) from error
