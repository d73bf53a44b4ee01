"""Records as an application sees them: those it reads, and where those it sent have gone.

A `Record` looks into librdkafka's message only when it is asked, and a batch makes its records
only when it is walked through: most of what a message has is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, overload

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from millstream.client.error import SerializationError

Header = tuple[str, bytes | None]
Decode = Callable[[bytes], Any]


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class RecordMetadata(NamedTuple):
    """Where a record that was sent has gone. `offset` is -1 with acks=0, `timestamp` in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None


class Record:
    """One record that was read. Values are decoded when first asked for."""

    __slots__ = ("_key", "_message", "_value")

    #: Functions of a consumer, not methods.
    _decode_key: ClassVar[Any] = None
    _decode_value: ClassVar[Any] = None

    _key: Any
    _value: Any

    def __init__(self, message: Message) -> None:
        self._message = message

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
        """Milliseconds since 1970, as the topic stamps them: by producer or by broker."""
        return timestamp_of(self._message)

    @property
    def headers(self) -> list[Header]:
        return self._message.headers() or []  # type: ignore[return-value]

    @property
    def key(self) -> Any:
        if self._decode_key is None:
            return self._message.key()
        try:
            return self._key
        except AttributeError:
            self._key = self._decoded(self._decode_key, self._message.key(), "key")
            return self._key

    @property
    def value(self) -> Any:
        if self._decode_value is None:
            return self._message.value()
        try:
            return self._value
        except AttributeError:
            self._value = self._decoded(self._decode_value, self._message.value(), "value")
            return self._value

    @property
    def raw_key(self) -> bytes | None:
        return self._message.key()

    @property
    def raw_value(self) -> bytes | None:
        return self._message.value()

    def header(self, name: str) -> bytes | None:
        """The last header of this name, or None."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    def _decoded(self, decode: Decode, data: bytes | None, part: str) -> Any:
        if data is None:
            return None
        try:
            return decode(data)
        except Exception as error:
            raise SerializationError(
                f"The {part} of {self.topic}-{self.partition} at offset {self.offset} cannot be "
                f"decoded: {error}. Its bytes are in raw_{part}."
            ) from error

    def __repr__(self) -> str:
        return f"<Record {self.topic}-{self.partition}@{self.offset}>"


def record_type(decode_key: Decode | None, decode_value: Decode | None) -> type[Record]:
    """The class of a consumer's records: what decodes them is per consumer, not per record."""
    if decode_key is None and decode_value is None:
        return Record
    decoders = {
        "_decode_key": decode_key and staticmethod(decode_key),
        "_decode_value": decode_value and staticmethod(decode_value),
    }
    return type("Record", (Record,), {"__slots__": (), **decoders})


class Records(Sequence[Record]):
    """What one poll returned, oldest first within each partition."""

    __slots__ = ("_make", "_messages")

    def __init__(self, messages: list[Message], make: type[Record]) -> None:
        self._messages = messages
        self._make = make

    def is_of(self, messages: list[Message]) -> bool:
        """Whether these are they, and not a copy."""
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
    kind, milliseconds = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds


def metadata_of(message: Message) -> RecordMetadata:
    offset = message.offset()
    return RecordMetadata(
        message.topic() or "",
        message.partition() or 0,
        -1 if offset is None or offset < 0 else offset,
        timestamp_of(message),
    )
