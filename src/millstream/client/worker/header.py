"""What the records that a worker moves carry in their headers. Pure.

    millstream.original.topic, .partition, .offset, .timestamp   where the record was first
    millstream.group        whose worker moved it: workers of other groups leave it alone
    millstream.attempts     how often it was tried
    millstream.due          in retry, scheduled and parked topics: not before, in ms since 1970
    millstream.parked       in parked topics: it is moved on then, in ms since 1970
    millstream.error.type, .message, .stack, millstream.dead.timestamp   of dead letters

All values are text. What the application has put into a record's headers stays.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from millstream.client.record import Header, Record
from millstream.client.schedule import DUE, PARKED, PARKED_S, parked_topic, scheduled_topic

PREFIX: Final = "millstream."
TOPIC: Final = "millstream.original.topic"
PARTITION: Final = "millstream.original.partition"
OFFSET: Final = "millstream.original.offset"
TIMESTAMP: Final = "millstream.original.timestamp"
GROUP: Final = "millstream.group"
ATTEMPTS: Final = "millstream.attempts"
ERROR_TYPE: Final = "millstream.error.type"
ERROR_MESSAGE: Final = "millstream.error.message"
ERROR_STACK: Final = "millstream.error.stack"
DEAD_TIMESTAMP: Final = "millstream.dead.timestamp"
REPLAYED_FROM: Final = "millstream.replayed.from"

#: Brokers refuse large records: a stack or a message is cut, not lost with its letter.
HEADERS_BYTES_MAX: Final = 64 * 1024
_STACK_CHARACTERS_MAX: Final = 8000
MESSAGE_CHARACTERS_MAX: Final = 1000


class Output(NamedTuple):
    """A record to be sent."""

    topic: str
    key: Any
    value: Any
    headers: list[Header]
    timestamp: int | None = None
    partition: int | None = None

    @property
    def size(self) -> int:
        """About as many bytes as it takes in memory."""
        return len(self.key or "") + len(self.value or "")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record was first, and what has become of it since."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    group: str | None
    attempts: int
    due_ms: int | None
    parked_ms: int | None = None

    @classmethod
    def of(cls, record: Record) -> Origin:
        known = headers_of(record.headers)
        if not known:
            place = (record.topic, record.partition, record.offset, record.timestamp)
            return cls(*place, None, 0, None)
        timestamp = number_in(known, TIMESTAMP)
        return cls(
            known.get(TOPIC) or record.topic.removesuffix(scheduled_topic("")),
            _first(number_in(known, PARTITION), record.partition),
            _first(number_in(known, OFFSET), record.offset),
            record.timestamp if timestamp is None else timestamp,
            known.get(GROUP),
            number_in(known, ATTEMPTS) or 0,
            number_in(known, DUE),
            number_in(known, PARKED),
        )


def headers_of(headers: Iterable[Header]) -> dict[str, str]:
    """Ours of a record's headers."""
    return {
        name: (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(PREFIX)
    }


def foreign(headers: Iterable[Header]) -> list[Header]:
    """The application's of a record's headers."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def scheduled(topic: str, key: Any, value: Any, headers: Iterable[Header], due_ms: int) -> Output:
    return Output(scheduled_topic(topic), key, value, [*headers, (DUE, _text(due_ms))], due_ms)


def retried(record: Record, origin: Origin, group: str, topic: str, due_ms: int) -> Output:
    """The record on its way to another attempt."""
    extra = [*_trail(origin, group), (DUE, _text(due_ms))]
    return Output(topic, record.raw_key, record.raw_value, foreign(record.headers) + extra)


def parked(record: Record, origin: Origin, group: str, level: int, now_ms: int) -> Output:
    """The record on its way to a partition where it waits for a part of its time."""
    until_ms = now_ms + PARKED_S[level] * 1000
    extra = [
        *_trail(origin, group),
        (DUE, _text(origin.due_ms or 0)),
        (PARKED, _text(until_ms)),
    ]
    return Output(
        parked_topic(origin.topic),
        record.raw_key,
        record.raw_value,
        foreign(record.headers) + extra,
        origin.due_ms,
        level,
    )


def buried(
    record: Record, origin: Origin, group: str, error: BaseException | str, now_ms: int
) -> Output:
    """The record as a dead letter."""
    if isinstance(error, BaseException):
        kind, message = type(error).__qualname__, str(error)
        stack = "".join(traceback.format_exception(error))
        if type(error).__module__ != "builtins":
            kind = f"{type(error).__module__}.{kind}"
    else:
        kind, message, stack = "Rejected", error, ""
    extra: list[Header] = [
        *_trail(origin, group),
        (DEAD_TIMESTAMP, _text(now_ms)),
        (ERROR_TYPE, kind.encode(errors="replace")),
        (ERROR_MESSAGE, message[:MESSAGE_CHARACTERS_MAX].encode(errors="replace")),
        # The end of a stack says where it happened.
        (ERROR_STACK, stack[-_STACK_CHARACTERS_MAX:].encode(errors="replace")),
    ]
    topic = dead_letter_topic(origin.topic)
    return Output(topic, record.raw_key, record.raw_value, foreign(record.headers) + extra)


def dead_letter_topic(topic: str) -> str:
    return f"{topic}.dlq"


def retry_topic(topic: str, level: int) -> str:
    return f"{topic}.retry.{level}"


def number_in(headers: dict[str, str], name: str) -> int | None:
    """A number among headers, which anybody may have written."""
    text = headers.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _trail(origin: Origin, group: str) -> list[Header]:
    stamp = [] if origin.timestamp is None else [(TIMESTAMP, _text(origin.timestamp))]
    return [
        (TOPIC, origin.topic.encode()),
        (PARTITION, _text(origin.partition)),
        (OFFSET, _text(origin.offset)),
        *stamp,
        (GROUP, group.encode()),
        (ATTEMPTS, _text(origin.attempts)),
    ]


def _text(number: int) -> bytes:
    return str(number).encode()


def _first(value: int | None, default: int) -> int:
    return default if value is None else value
