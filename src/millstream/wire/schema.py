"""Message classes, and the codec of each class in each version.

    @message(ApiKey.HEARTBEAT, versions=(0, 4))
    class HeartbeatResponse(Message):
        throttle_time_ms: int = int32(since=1, ignorable=True)
        error_code: int = int16()

A schema is declared once for all its versions, as a slotted dataclass whose fields are made by
`wire.field`; structs inside it are nested classes marked with `struct`. `codec(cls, version)`
compiles the functions for one version on first use and keeps them. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)

from millstream.wire.api import ApiKey, flexible_from
from millstream.wire.decoder import compile_decoder
from millstream.wire.encoder import compile_encoder
from millstream.wire.primitive import Buffer


class Sendable(Protocol):
    """Record batches that are not in memory: a range of a file that knows its length."""

    def __len__(self) -> int: ...


Segment: TypeAlias = Buffer | Sendable


class Message:
    """Base of all requests and responses."""

    __slots__ = ()

    api_key: ClassVar[ApiKey]
    #: First and last version that has a codec.
    versions: ClassVar[tuple[int, int]]
    #: First version with compact lengths and tag sections.
    flexible_from: ClassVar[int]


T = TypeVar("T")
M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)


class Decode(Protocol[M_co]):
    """See `Codec.decode`."""

    def __call__(self, buffer: Buffer, position: int = 0, /) -> M_co: ...


@dataclass(frozen=True, slots=True, eq=False)
class Codec(Generic[M]):
    """How one message class is read and written in one version."""

    version: int
    #: Reads from a position on; of a response, all to the end of the buffer. Raises `DecodeError`
    #: on anything that is not this message. Record batches in the result are views of the buffer.
    decode: Decode[M]
    #: Returns the message as segments to be sent in order; record batches are passed through as
    #: segments of their own. Raises `EncodeError`.
    encode: Callable[[M], list[Segment]]


@dataclass_transform(kw_only_default=True)
def struct(shape: type[T]) -> type[T]:
    """Make a class of fields into a struct that messages can hold."""
    return dataclass(slots=True, kw_only=True)(shape)


@dataclass_transform(kw_only_default=True)
def message(api_key: ApiKey, *, versions: tuple[int, int]) -> Callable[[type[M]], type[M]]:
    """Make a class of fields into the request or response of an API."""

    def decorate(shape: type[M]) -> type[M]:
        made = dataclass(slots=True, kw_only=True)(shape)
        made.api_key = api_key
        made.versions = versions
        made.flexible_from = flexible_from(api_key)
        return made

    return decorate


_codecs: dict[tuple[type, int], Codec[Any]] = {}


def codec(shape: type[M], version: int) -> Codec[M]:
    """Return the codec of a message class in one of its versions."""
    found = _codecs.get((shape, version))
    if found is None:
        found = _codecs[shape, version] = _compile(shape, version)
    return found


def _compile(shape: type[M], version: int) -> Codec[M]:
    first, last = shape.versions
    if not first <= version <= last:
        raise ValueError(f"{shape.__name__} has versions {first} to {last}, not {version}")
    return Codec(
        version=version,
        decode=compile_decoder(shape, version, shape.flexible_from),
        encode=compile_encoder(shape, version, shape.flexible_from),
    )
