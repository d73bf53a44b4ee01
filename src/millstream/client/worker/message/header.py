"""The headers of records that a worker moves between topics, and the records it builds. Pure.

    millstream.original.topic, .partition, .offset, .timestamp   where the record was first
    millstream.group        the group whose worker moved it; workers of other groups ignore it
    millstream.attempts     number of attempts so far
    millstream.due          in retry, scheduled and parked topics: not before, in ms since 1970
    millstream.parked       in parked topics: when to move it on, in ms since 1970
    millstream.ttl          seconds after its timestamp in which an attempt must start; the sender's
    millstream.error.type, .message, .stack, millstream.dead.timestamp   of dead letters

All values are text. The application's own headers stay.
"""

from __future__ import annotations

import re
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
TTL: Final = "millstream.ttl"
ERROR_TYPE: Final = "millstream.error.type"
ERROR_MESSAGE: Final = "millstream.error.message"
ERROR_STACK: Final = "millstream.error.stack"
DEAD_TIMESTAMP: Final = "millstream.dead.timestamp"
REPLAYED_FROM: Final = "millstream.replayed.from"

#: Brokers reject large records. Stacks and messages are truncated so that the letter fits.
HEADERS_BYTES_MAX: Final = 64 * 1024
_STACK_CHARACTERS_MAX: Final = 8000
MESSAGE_CHARACTERS_MAX: Final = 1000
_SECONDS: Final = re.compile(r"\d{1,15}(\.\d{1,9})?\Z", re.ASCII)


class OutputRecord(NamedTuple):
    """A record to send."""

    topic: str
    key: Any
    value: Any
    headers: list[Header]
    timestamp: int | None = None
    partition: int | None = None

    @property
    def size(self) -> int:
        """Estimated memory in bytes."""
        return len(self.key or "") + len(self.value or "")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record was first, and its attempts and due times since."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    group: str | None
    attempts: int
    due_ms: int | None
    parked_ms: int | None = None
    ttl_s: float | None = None

    @classmethod
    def of(cls, record: Record) -> Origin:
        """Read the origin from a record's headers. Without them the record is its own origin."""
        known = worker_headers(record.headers)
        if not known:
            position = (record.topic, record.partition, record.offset, record.timestamp)
            return cls(*position, None, 0, None)
        timestamp = number_in(known, TIMESTAMP)
        return cls(
            known.get(TOPIC) or record.topic.removesuffix(scheduled_topic("")),
            _or_default(number_in(known, PARTITION), record.partition),
            _or_default(number_in(known, OFFSET), record.offset),
            record.timestamp if timestamp is None else timestamp,
            known.get(GROUP),
            number_in(known, ATTEMPTS) or 0,
            number_in(known, DUE),
            number_in(known, PARKED),
            _seconds_in(known, TTL),
        )


def worker_headers(headers: Iterable[Header]) -> dict[str, str]:
    """Return Millstream's headers of a record, as text."""
    return {
        name: (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(PREFIX)
    }


def application_headers(headers: Iterable[Header]) -> list[Header]:
    """Return the application's headers of a record."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def scheduled_record(
    topic: str, key: Any, value: Any, headers: Iterable[Header], due_ms: int
) -> OutputRecord:
    """Return the record for `<topic>.scheduled` that is due at `due_ms`."""
    extra = (DUE, _text(due_ms))
    return OutputRecord(scheduled_topic(topic), key, value, [*headers, extra], due_ms)


def retry_record(
    record: Record, origin: Origin, group: str, topic: str, due_ms: int
) -> OutputRecord:
    """Return the record for the retry topic `topic`."""
    headers = [
        *application_headers(record.headers),
        *_origin_headers(origin, group),
        (DUE, _text(due_ms)),
    ]
    return OutputRecord(topic, record.raw_key, record.raw_value, headers)


def parked_record(
    record: Record, origin: Origin, group: str, level: int, now_ms: int
) -> OutputRecord:
    """Return the record for partition `level` of the parked topic."""
    until_ms = now_ms + PARKED_S[level] * 1000
    headers = [
        *application_headers(record.headers),
        *_origin_headers(origin, group),
        (DUE, _text(origin.due_ms or 0)),
        (PARKED, _text(until_ms)),
    ]
    return OutputRecord(
        parked_topic(origin.topic),
        record.raw_key,
        record.raw_value,
        headers,
        origin.due_ms,
        level,
    )


def dead_letter_record(
    record: Record, origin: Origin, group: str, error: BaseException | str, now_ms: int
) -> OutputRecord:
    """Return the record's dead letter."""
    if isinstance(error, BaseException):
        kind, message = type(error).__qualname__, str(error)
        stack = "".join(traceback.format_exception(error))
        if type(error).__module__ != "builtins":
            kind = f"{type(error).__module__}.{kind}"
    else:
        kind, message, stack = "Rejected", error, ""
    headers: list[Header] = [
        *application_headers(record.headers),
        *_origin_headers(origin, group),
        (DEAD_TIMESTAMP, _text(now_ms)),
        (ERROR_TYPE, kind.encode(errors="replace")),
        (ERROR_MESSAGE, message[:MESSAGE_CHARACTERS_MAX].encode(errors="replace")),
        # The last lines of a stack name the failing call.
        (ERROR_STACK, stack[-_STACK_CHARACTERS_MAX:].encode(errors="replace")),
    ]
    topic = dead_letter_topic(origin.topic)
    return OutputRecord(topic, record.raw_key, record.raw_value, headers)


def dead_letter_topic(topic: str) -> str:
    """Return the name of the topic's dead-letter topic."""
    return f"{topic}.dlq"


def retry_topic(topic: str, level: int) -> str:
    """Return the name of the topic's retry topic of this level."""
    return f"{topic}.retry.{level}"


def number_in(headers: dict[str, str], name: str) -> int | None:
    """Return a header as a number. None if it is absent or malformed: any program may write it."""
    text = headers.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _seconds_in(headers: dict[str, str], name: str) -> float | None:
    text = headers.get(name, "")
    return float(text) if _SECONDS.match(text) else None


def _origin_headers(origin: Origin, group: str) -> list[Header]:
    timestamp = [] if origin.timestamp is None else [(TIMESTAMP, _text(origin.timestamp))]
    ttl = [] if origin.ttl_s is None else [(TTL, str(origin.ttl_s).encode())]
    return [
        (TOPIC, origin.topic.encode()),
        (PARTITION, _text(origin.partition)),
        (OFFSET, _text(origin.offset)),
        *timestamp,
        (GROUP, group.encode()),
        (ATTEMPTS, _text(origin.attempts)),
        *ttl,
    ]


def _text(number: int) -> bytes:
    return str(number).encode()


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value
