"""Declarations of the fields of message classes.

    acks: int = int16()
    name: str = string(until=12)
    rack: str | None = nullable_string(since=1, ignorable=True)
    topics: list[Topic] = array(Topic)
    current_leader: Leader | None = tagged_struct(Leader, tag=0, since=10)

Each function returns a dataclass field that has a `Spec` in its metadata. The declared return type
is the Python type of the field, so type checkers see an attribute with a default value.

- `since` and `until`: first and last version that has the field, both inclusive.
- `nullable_since`: first version in which a nullable field may be null on the wire.
- `tag`: the field is in the tag section, and only if it differs from its default.
- `ignorable`: in versions without the field its value is dropped; without `ignorable`, a value
  other than the default is an `EncodeError`.

Nullable fields default to None unless declared otherwise, tagged structs to None, arrays to a new
empty list, uuids to zeros. A tagged struct that is None is absent on the wire, which readers take
for a struct with its defaults.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias, TypeVar, cast

from millstream.model.topic import NO_TOPIC_ID

T = TypeVar("T")

#: A version above every version of every message.
VERSION_MAX: Final = 0x7FFF
_SPEC: Final = "wire"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of fixed size, with its `struct` letter and size in bytes."""

    letter: str
    size: int


@dataclass(frozen=True, slots=True)
class String:
    """UTF-8 text after a 16-bit or varint length."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes after a 32-bit or varint length. Record batches are `borrowed`: they are not copied."""

    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    """A nested class made with `schema.struct`."""

    shape: type


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one kind after a 32-bit or varint count."""

    element: Fixed | String | Bytes | Struct


Kind: TypeAlias = Fixed | String | Bytes | Struct | Array

INT8: Final = Fixed("b", 1)
INT16: Final = Fixed("h", 2)
INT32: Final = Fixed("i", 4)
INT64: Final = Fixed("q", 8)
UINT16: Final = Fixed("H", 2)
UINT32: Final = Fixed("I", 4)
FLOAT64: Final = Fixed("d", 8)
BOOL: Final = Fixed("?", 1)
UUID: Final = Fixed("16s", 16)
STRING: Final = String()
BYTES: Final = Bytes()
RECORDS: Final = Bytes(borrowed=True)


@dataclass(frozen=True, slots=True)
class Spec:
    """The declaration of one field, for the codec compilers."""

    kind: Kind
    default: object
    since: int = 0
    until: int = VERSION_MAX
    nullable_since: int = VERSION_MAX + 1
    tag: int | None = None
    ignorable: bool = False

    def is_in(self, version: int) -> bool:
        """Return whether `version` has the field."""
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        """Return whether the field may be null in `version`."""
        return self.nullable_since <= version

    @property
    def is_always_written(self) -> bool:
        """Whether this is a tagged struct for which null and absence differ."""
        is_tagged_struct = self.tag is not None and isinstance(self.kind, Struct)
        return is_tagged_struct and self.nullable_since <= VERSION_MAX


def specs_of(shape: type) -> list[tuple[str, Spec]]:
    """Return the fields of a message or struct class, in wire order."""
    return [(each.name, each.metadata[_SPEC]) for each in fields(shape)]


def int8(
    *, since: int = 0, until: int = VERSION_MAX, default: int = 0, ignorable: bool = False
) -> int:
    return cast("int", _declare(Spec(INT8, default, since, until, ignorable=ignorable)))


def int16(
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    default: int = 0,
    ignorable: bool = False,
    tag: int | None = None,
) -> int:
    spec = Spec(INT16, default, since, until, tag=tag, ignorable=ignorable)
    return cast("int", _declare(spec))


def int32(
    *, since: int = 0, until: int = VERSION_MAX, default: int = 0, ignorable: bool = False
) -> int:
    return cast("int", _declare(Spec(INT32, default, since, until, ignorable=ignorable)))


def int64(
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    default: int = 0,
    ignorable: bool = False,
    tag: int | None = None,
) -> int:
    spec = Spec(INT64, default, since, until, tag=tag, ignorable=ignorable)
    return cast("int", _declare(spec))


def uint16(*, since: int = 0, default: int = 0, ignorable: bool = False) -> int:
    return cast("int", _declare(Spec(UINT16, default, since, ignorable=ignorable)))


def uint32(*, since: int = 0, default: int = 0, ignorable: bool = False) -> int:
    return cast("int", _declare(Spec(UINT32, default, since, ignorable=ignorable)))


def float64(*, since: int = 0, default: float = 0.0, ignorable: bool = False) -> float:
    return cast("float", _declare(Spec(FLOAT64, default, since, ignorable=ignorable)))


def boolean(
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    default: bool = False,
    ignorable: bool = False,
    tag: int | None = None,
) -> bool:
    spec = Spec(BOOL, default, since, until, tag=tag, ignorable=ignorable)
    return cast("bool", _declare(spec))


def uuid(*, since: int = 0, ignorable: bool = False, tag: int | None = None) -> bytes:
    """Sixteen raw bytes."""
    return cast("bytes", _declare(Spec(UUID, NO_TOPIC_ID, since, tag=tag, ignorable=ignorable)))


def string(
    *, since: int = 0, until: int = VERSION_MAX, default: str = "", ignorable: bool = False
) -> str:
    return cast("str", _declare(Spec(STRING, default, since, until, ignorable=ignorable)))


def nullable_string(
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable_since: int = 0,
    default: str | None = None,
    ignorable: bool = False,
    tag: int | None = None,
) -> str | None:
    spec = Spec(STRING, default, since, until, nullable_since, tag, ignorable)
    return cast("str | None", _declare(spec))


def octets(*, since: int = 0, until: int = VERSION_MAX, ignorable: bool = False) -> bytes:
    """Kafka's `bytes`, copied out of the message."""
    return cast("bytes", _declare(Spec(BYTES, b"", since, until, ignorable=ignorable)))


def nullable_octets(
    *, since: int = 0, until: int = VERSION_MAX, ignorable: bool = False
) -> bytes | None:
    spec = Spec(BYTES, None, since, until, nullable_since=0, ignorable=ignorable)
    return cast("bytes | None", _declare(spec))


def records() -> Any:
    """Record batches: a view of the input when decoded, a segment of its own when encoded."""
    return _declare(Spec(RECORDS, None, nullable_since=0))


def struct_field(shape: type[T], *, since: int = 0) -> T:
    """A nested struct that is never null; it is dropped in versions without it."""
    spec = Spec(Struct(shape), dataclasses.MISSING, since, ignorable=True)
    return field(default_factory=shape, metadata={_SPEC: spec})


def nullable_struct(shape: type[T], *, since: int = 0, ignorable: bool = False) -> T | None:
    spec = Spec(Struct(shape), None, since, nullable_since=0, ignorable=ignorable)
    return cast("T | None", _declare(spec))


def tagged_struct(shape: type[T], *, tag: int, since: int = 0, ignorable: bool = False) -> T | None:
    spec = Spec(Struct(shape), None, since, tag=tag, ignorable=ignorable)
    return cast("T | None", _declare(spec))


def nullable_tagged_struct(shape: type[T], *, tag: int) -> T | None:
    """A tagged struct whose absence means its defaults, so None is written as null.

    The byte before it is 0 for null, unlike the byte before a struct outside the tag section.
    """
    return cast("T | None", _declare(Spec(Struct(shape), None, nullable_since=0, tag=tag)))


def array(
    element: type[T],
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    ignorable: bool = False,
    tag: int | None = None,
) -> list[T]:
    """An array of structs."""
    spec = Spec(Array(Struct(element)), [], since, until, tag=tag, ignorable=ignorable)
    return cast("list[T]", _declare(spec))


def nullable_array(
    element: type[T],
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable_since: int = 0,
    ignorable: bool = False,
) -> list[T] | None:
    spec = Spec(Array(Struct(element)), None, since, until, nullable_since, ignorable=ignorable)
    return cast("list[T] | None", _declare(spec))


def int8_array(*, since: int = 0) -> list[int]:
    return cast("list[int]", _declare(Spec(Array(INT8), [], since)))


def int32_array(*, since: int = 0, until: int = VERSION_MAX, ignorable: bool = False) -> list[int]:
    spec = Spec(Array(INT32), [], since, until, ignorable=ignorable)
    return cast("list[int]", _declare(spec))


def int64_array(*, since: int = 0, until: int = VERSION_MAX, ignorable: bool = False) -> list[int]:
    spec = Spec(Array(INT64), [], since, until, ignorable=ignorable)
    return cast("list[int]", _declare(spec))


def nullable_int32_array(*, since: int = 0, ignorable: bool = False) -> list[int] | None:
    spec = Spec(Array(INT32), None, since, nullable_since=0, ignorable=ignorable)
    return cast("list[int] | None", _declare(spec))


def tagged_int32_array(*, tag: int) -> list[int] | None:
    """An int32 array that is absent if it is empty. Null is read as None; None is not written."""
    return cast("list[int] | None", _declare(Spec(Array(INT32), [], nullable_since=0, tag=tag)))


def string_array(*, since: int = 0, until: int = VERSION_MAX, ignorable: bool = False) -> list[str]:
    spec = Spec(Array(STRING), [], since, until, ignorable=ignorable)
    return cast("list[str]", _declare(spec))


def nullable_string_array(*, since: int = 0, ignorable: bool = False) -> list[str] | None:
    spec = Spec(Array(STRING), None, since, nullable_since=0, ignorable=ignorable)
    return cast("list[str] | None", _declare(spec))


def _declare(spec: Spec) -> object:
    if isinstance(spec.default, list):
        return field(default_factory=list, metadata={_SPEC: spec})
    return field(default=spec.default, metadata={_SPEC: spec})
