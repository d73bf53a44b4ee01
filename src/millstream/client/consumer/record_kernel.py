"""The code that runs once per record read: a `Record` over librdkafka's message.

Plain Python, compiled with the C types of `record_kernel.pxd` where a C compiler exists. Both
behave the same. A record reads a field of its message only when the field is accessed, and a batch
creates its records only while it is iterated: most fields are never read. `record_kernel.pyi` has
the types of the public names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import GenericAlias
from typing import Any, overload

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from millstream.client.error import SerializationError

Header = tuple[str, bytes | None]
Decode = Callable[[bytes], Any]

_UNKNOWN: Any = object()


class Record:
    """One record that was read. Values are decoded at the first access."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    @classmethod
    def __class_getitem__(cls, kinds: Any) -> GenericAlias:
        """Return `Record[K, V]` for annotations."""
        return GenericAlias(cls, kinds)

    @property
    def topic(self) -> str:
        return self._message.topic()  # type: ignore[return-value]

    @property
    def partition(self) -> int:
        return self._message.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        return self._message.offset()  # type: ignore[return-value]

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970, set by the producer or the broker, as the topic says."""
        return timestamp_of(self._message)

    @property
    def headers(self) -> list[Header]:
        return self._message.headers() or []  # type: ignore[return-value]

    @property
    def key(self) -> Any:
        return self._message.key()

    @property
    def value(self) -> Any:
        return self._message.value()

    @property
    def raw_key(self) -> bytes | None:
        return self._message.key()

    @property
    def raw_value(self) -> bytes | None:
        return self._message.value()

    def header(self, name: str) -> bytes | None:
        """Return the last header of this name, or None."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None

    def __repr__(self) -> str:
        return f"<Record {self.topic}-{self.partition}@{self.offset}>"


class DecodedRecord(Record):
    """A record of a consumer with deserializers. Each such consumer has its own subclass."""

    __slots__ = ("_key", "_value")

    _decode_key: Any = None
    _decode_value: Any = None

    def __init__(self, message: Message) -> None:
        self._message = message
        self._key = self._value = _UNKNOWN

    @property
    def key(self) -> Any:
        if self._key is _UNKNOWN:
            self._key = self._decoded(self._decode_key, self._message.key(), "key")
        return self._key

    @property
    def value(self) -> Any:
        if self._value is _UNKNOWN:
            self._value = self._decoded(self._decode_value, self._message.value(), "value")
        return self._value

    def _decoded(self, decode: Decode | None, data: bytes | None, part: str) -> Any:
        if data is None or decode is None:
            return data
        try:
            return decode(data)
        except Exception as error:
            raise SerializationError(
                f"The {part} of {self.topic}-{self.partition} at offset {self.offset} cannot be "
                f"decoded: {error}. Its bytes are in raw_{part}."
            ) from error


def record_type(decode_key: Decode | None, decode_value: Decode | None) -> type[Record]:
    """Return the class of a consumer's records."""
    if decode_key is None and decode_value is None:
        return Record
    decoders = {
        "_decode_key": decode_key and staticmethod(decode_key),
        "_decode_value": decode_value and staticmethod(decode_value),
    }
    return type("Record", (DecodedRecord,), {"__slots__": (), **decoders})


class Records(Sequence[Record]):
    """The records of one poll, oldest first within each partition."""

    __slots__ = ("_make", "_messages")

    def __init__(self, messages: list[Message], make: type[Record]) -> None:
        self._messages = messages
        self._make = make

    def is_of(self, messages: list[Message]) -> bool:
        """Whether these records share this list, rather than a copy."""
        return self._messages is messages

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Record]:
        return map(self._make, self._messages)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        if isinstance(index, slice):
            return Records(self._messages[index], self._make)
        return self._make(self._messages[index])

    def __repr__(self) -> str:
        return f"<{len(self._messages)} records>"


def timestamp_of(message: Message) -> int | None:
    """Return a message's timestamp in milliseconds since 1970, or None."""
    kind, milliseconds = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds


def is_compiled() -> bool:
    """Whether this module runs as C."""
    return not __file__.endswith((".py", ".pyc"))
