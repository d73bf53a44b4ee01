"""Keys and values as bytes and back: JSON, msgspec, Avro, Protobuf, or any function.

A serializer has `serialize`, a deserializer `deserialize`, and a serde both, so that producers and
consumers can use the same object. A plain function works as well. None stays None: in a compacted
topic it deletes the key. A serde imports the packages of its format when it is created.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, overload

import msgspec

from millstream.client.error import SerializationError, UsageError

_EXTRAS: Final = {"fastavro": "avro", "google.protobuf": "protobuf"}


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Kind = TypeVar("Kind", default=Any)
    Kind_contra = TypeVar("Kind_contra", contravariant=True, default=Any)
    Kind_co = TypeVar("Kind_co", covariant=True, default=Any)
    #: What a producer without serializers sends, and what a consumer without deserializers reads.
    KeySent = TypeVar("KeySent", default=bytes | str | None)
    ValueSent = TypeVar("ValueSent", default=bytes | str | None)
    KeyRead = TypeVar("KeyRead", default=bytes | None)
    ValueRead = TypeVar("ValueRead", default=bytes | None)
else:
    # Before Python 3.13 a type variable has no default, and at run time none is needed.
    from typing import TypeVar

    Kind = TypeVar("Kind")
    Kind_contra = TypeVar("Kind_contra", contravariant=True)
    Kind_co = TypeVar("Kind_co", covariant=True)
    KeySent, ValueSent = TypeVar("KeySent"), TypeVar("ValueSent")
    KeyRead, ValueRead = TypeVar("KeyRead"), TypeVar("ValueRead")


class Serializer(Protocol[Kind_contra]):
    """Encodes values of one kind."""

    def serialize(self, value: Kind_contra, /) -> bytes:
        """Return the value as bytes."""


class Deserializer(Protocol[Kind_co]):
    """Decodes values of one kind."""

    def deserialize(self, data: bytes, /) -> Kind_co:
        """Return the value of these bytes."""


class Serde(Serializer[Kind], Deserializer[Kind], Protocol[Kind]):
    """Encodes and decodes values of one kind: for producers and for consumers."""


AnySerializer: TypeAlias = Serializer[Kind] | Callable[[Kind], bytes]
AnyDeserializer: TypeAlias = Deserializer[Kind] | Callable[[bytes], Kind]
#: The functions that clients call.
Serialize: TypeAlias = Callable[[Any], bytes]
Deserialize: TypeAlias = Callable[[bytes], Any]


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


class MsgspecSerializer(Generic[Kind]):
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

    @overload
    def __init__(
        self, kind: type[Kind], *, format: Literal["json", "msgpack"] = "json"
    ) -> None: ...
    @overload
    def __init__(
        self: MsgspecSerializer[Any],
        kind: Any = ...,
        *,
        format: Literal["json", "msgpack"] = "json",
    ) -> None: ...
    def __init__(self, kind: Any = Any, *, format: Literal["json", "msgpack"] = "json") -> None:  # noqa: A002
        self.serialize: Callable[[Kind], bytes]
        self.deserialize: Callable[[bytes], Kind]
        if format == "json":
            self.serialize = msgspec.json.Encoder().encode
            self.deserialize = msgspec.json.Decoder(kind).decode
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


class ProtobufSerializer(Generic[Kind]):
    """Messages of one generated Protobuf class, without a header. Needs `millstream[protobuf]`.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> names = ProtobufSerializer(StringValue)
    >>> names.deserialize(names.serialize(StringValue(value="alice"))).value
    'alice'
    """

    def __init__(self, message: type[Kind]) -> None:
        base = _import("google.protobuf", "ProtobufSerializer", "google.protobuf.message").Message
        if not (isinstance(message, type) and issubclass(message, base)):
            raise UsageError(f"{message!r} is not a class that the Protobuf compiler generated.")
        self._message = message

    def serialize(self, value: Kind, /) -> bytes:
        if not isinstance(value, self._message):
            raise TypeError(f"expected a {self._message.__name__}, got a {type(value).__name__}")
        data: bytes = value.SerializeToString()  # type: ignore[attr-defined]
        return data

    def deserialize(self, data: bytes, /) -> Kind:
        value: Kind = self._message.FromString(data)  # type: ignore[attr-defined]
        return value


def serialize_of(name: str, serializer: AnySerializer[Any] | None) -> Serialize | None:
    """Return the function that encodes values; None without a serializer. `name` is the option."""
    return _function_of(name, serializer, "serialize", "takes a value and returns bytes")


def deserialize_of(name: str, deserializer: AnyDeserializer[Any] | None) -> Deserialize | None:
    """Return the function that decodes bytes; None without a deserializer."""
    return _function_of(name, deserializer, "deserialize", "takes bytes and returns a value")


def _function_of(name: str, given: Any, method: str, what: str) -> Callable[[Any], Any] | None:
    if given is None:
        return None
    found = getattr(given, method, given)
    if isinstance(given, type) and found is not given:
        raise UsageError(f"{name}={given.__name__} is a class: pass {given.__name__}(...).")
    if inspect.iscoroutinefunction(found):
        raise UsageError(f"{name}={given!r} is a coroutine function: pass a plain one.")
    if callable(found):
        return found  # type: ignore[no-any-return]
    hint = ""
    if hasattr(given, "encode") or hasattr(given, "decode"):
        hint = " Since version 1.0 the methods are called serialize and deserialize."
    raise UsageError(
        f"{name}={given!r}: pass an object with a method `{method}`, for example JsonSerializer(), "
        f"or a function that {what}.{hint}"
    )


def encoded(serialize: Serialize, value: Any, part: str, topic: str) -> bytes | None:
    """Return the value as bytes, or raise a SerializationError with topic and type."""
    if value is None:
        return None
    try:
        return serialize(value)
    except Exception as error:
        raise SerializationError(
            f"The {part} for topic {topic!r}, a {type(value).__name__}, cannot be encoded by "
            f"{_name_of(serialize)}: {error}. Send a value that it can encode, or pass another "
            f"{part}_serializer."
        ) from error


def _name_of(function: Serialize) -> str:
    owner = getattr(function, "__self__", None)
    is_method = owner is not None and not inspect.ismodule(owner)
    return type(owner).__name__ if is_method else getattr(function, "__name__", repr(function))


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
