"""Message classes, and the codec of each class in each version.

    @message(ApiKey.HEARTBEAT, versions=(0, 4))
    class HeartbeatResponse(Message):
        throttle_time_ms: int = int32(since=1, ignorable=True)
        error_code: int = int16()

A schema is declared once for all its versions, as a slotted dataclass whose fields come from
`wire.field`; nested structs are nested classes with the decorator `struct`. `codec(cls, version)`
compiles the functions of one version on first use and caches them.

Data in records or inside other messages has a schema without an API: its class derives from
`Versioned` and has the decorator `versioned`. Such data begins with its version, an int16;
`decode_prefixed` and `encode_prefixed` read and write it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
)

from millstream.wire.api import NEVER_FLEXIBLE, ApiKey, flexible_from
from millstream.wire.decoder import compile_decoder
from millstream.wire.encoder import compile_encoder
from millstream.wire.primitive import Buffer, DecodeError

_INT16: Final = Struct(">h")


class Sendable(Protocol):
    """Record batches that are not in memory, such as a range of a file. Only the length is used."""

    def __len__(self) -> int: ...


Segment: TypeAlias = Buffer | Sendable


class Versioned:
    """Base of all classes with one schema for many versions."""

    __slots__ = ()

    #: First and last version that has a codec.
    versions: ClassVar[tuple[int, int]]
    #: First flexible version: with compact lengths and tag sections.
    flexible_from: ClassVar[int]
    #: Whether bytes after the last field are ignored; otherwise they raise `DecodeError`.
    is_open: ClassVar[bool]


class Message(Versioned):
    """Base of all requests and responses."""

    __slots__ = ()

    api_key: ClassVar[ApiKey]


T = TypeVar("T")
M = TypeVar("M", bound=Message)
V = TypeVar("V", bound=Versioned)
V_co = TypeVar("V_co", bound=Versioned, covariant=True)


class Decode(Protocol[V_co]):
    """The type of `Codec.decode`."""

    def __call__(self, buffer: Buffer, position: int = 0, /) -> V_co: ...


@dataclass(frozen=True, slots=True, eq=False)
class Codec(Generic[V]):
    """The functions that decode and encode one class in one version."""

    version: int
    #: Decodes from a position, to the end of the buffer unless the class is open. Raises
    #: `DecodeError`. Record batches in the result are views of the buffer.
    decode: Decode[V]
    #: Returns the message as segments to send in order; record batches are segments of their own.
    #: Raises `EncodeError`.
    encode: Callable[[V], list[Segment]]


@dataclass_transform(kw_only_default=True)
def struct(shape: type[T]) -> type[T]:
    """Turn a class of fields into a struct for messages."""
    return _slotted(shape)


@dataclass_transform(kw_only_default=True)
def message(api_key: ApiKey, *, versions: tuple[int, int]) -> Callable[[type[M]], type[M]]:
    """Turn a class of fields into the request or response of an API.

    Like Kafka's, requests are open: librdkafka 2.16 sends three bytes too many in a Metadata
    request for all topics.
    """

    def decorate(shape: type[M]) -> type[M]:
        is_open = shape.__name__.endswith("Request")
        made = _make(shape, versions, flexible_from(api_key), is_open)
        made.api_key = api_key
        return made

    return decorate


@dataclass_transform(kw_only_default=True)
def versioned(
    *, versions: tuple[int, int], flexible_from: int = NEVER_FLEXIBLE, is_open: bool = False
) -> Callable[[type[V]], type[V]]:
    """Turn a class of fields into versioned data.

    Versions above the last one of an open class are read as the last one: later versions of such a
    class only append fields.
    """
    return lambda shape: _make(shape, versions, flexible_from, is_open)


def _make(shape: type[V], versions: tuple[int, int], first_flexible: int, is_open: bool) -> type[V]:
    made = _slotted(shape)
    made.versions = versions
    made.flexible_from = first_flexible
    made.is_open = is_open
    return made


def _slotted(shape: type[T]) -> type[T]:
    """Return `shape` as a slotted dataclass, built quickly: a broker builds hundreds at its start.

    All classes share their methods except `__init__`, so that `dataclass` does not compile them for
    each class. A docstring saves the text of the signature.
    """
    shape.__doc__ = shape.__doc__ or shape.__qualname__
    shape.__eq__ = _equal  # type: ignore[method-assign]
    shape.__hash__ = None  # type: ignore[assignment]
    shape.__repr__ = _text  # type: ignore[method-assign]
    return dataclass(slots=True, kw_only=True, eq=False, repr=False, match_args=False)(shape)


def _equal(self: object, other: object) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    names = cast("tuple[str, ...]", type(self).__slots__)  # type: ignore[attr-defined]
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _text(self: object) -> str:
    names = cast("tuple[str, ...]", type(self).__slots__)  # type: ignore[attr-defined]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
    return f"{type(self).__qualname__}({values})"


_codecs: dict[tuple[type, int], Codec[Any]] = {}


def codec(shape: type[V], version: int) -> Codec[V]:
    """Return the codec of a class in one of its versions."""
    found = _codecs.get((shape, version))
    if found is None:
        found = _codecs[shape, version] = _compile(shape, version)
    return found


def _compile(shape: type[V], version: int) -> Codec[V]:
    first, last = shape.versions
    if not first <= version <= last:
        raise ValueError(f"{shape.__name__} has versions {first} to {last}, not {version}")
    return Codec(
        version=version,
        decode=compile_decoder(shape, version, shape.flexible_from, shape.is_open),
        encode=compile_encoder(shape, version, shape.flexible_from),
    )


def read_version(shape: type[Versioned], buffer: Buffer) -> int:
    """Return the version in which `decode_prefixed` reads `buffer`. Raises `DecodeError`."""
    if len(buffer) < _INT16.size:
        raise DecodeError(f"{len(buffer)} bytes are too few for the version of {shape.__name__}")
    (version,) = _INT16.unpack_from(buffer)
    first, last = shape.versions
    if version > last and shape.is_open:
        return last
    if not first <= version <= last:
        raise DecodeError(f"{shape.__name__} has versions {first} to {last}, not {version}")
    return int(version)


def decode_prefixed(shape: type[V], buffer: Buffer) -> V:
    """Decode versioned data after its version. Raises `DecodeError`."""
    return codec(shape, read_version(shape, buffer)).decode(buffer, _INT16.size)


def encode_prefixed(value: Versioned, version: int) -> bytes:
    """Return versioned data after its version. Raises `EncodeError`."""
    body = cast("list[Buffer]", codec(type(value), version).encode(value))
    return b"".join([_INT16.pack(version), *body])
