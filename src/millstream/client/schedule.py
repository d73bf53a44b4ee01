"""Delayed messages: the topics they wait in, and the headers with their due time. Pure.

Delayed messages wait in `<topic>.scheduled`. The workers of every group that reads the topic
process them when they are due. Their timestamp is the due time, so that retention counts from it:
otherwise a message for next month would be deleted next week.

A worker holds messages that are not due. If there are many, it moves those with a long delay to
`<topic>.parked`. Each partition of that topic has one waiting time, `PARKED_S`, so messages leave
it in the order in which they arrived, and none waits for a message that is due later. A message
that has waited moves to a partition with a shorter time, until it is due soon. It moves about a
dozen times per waiting time at most.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from millstream.client.error import UsageError
from millstream.model.sentinel import INT64_MAX

Headers: TypeAlias = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
#: Header: not before, in milliseconds since 1970, as text.
DUE: Final = "millstream.due"
#: Header: when the message leaves its partition of the parked topic, in the same form.
PARKED: Final = "millstream.parked"
#: Seconds that messages wait in each partition of a parked topic: half a minute to five days.
PARKED_S: Final = (30, 300, 3600, 36_000, 432_000)
#: The config of a scheduled topic: timestamps may be in the future.
TOPIC_CONFIG: Final = {"message.timestamp.after.max.ms": str(INT64_MAX)}


def scheduled_topic(topic: str) -> str:
    """Return the name of the topic's scheduled topic."""
    return f"{topic}.scheduled"


def parked_topic(topic: str) -> str:
    """Return the name of the topic's parked topic."""
    return f"{topic}.parked"


def parked_level(wait_s: float) -> int | None:
    """Return the parked partition for a message due in `wait_s` seconds; None if that is soon."""
    fitting = [number for number, parked_s in enumerate(PARKED_S) if parked_s <= wait_s]
    return fitting[-1] if fitting else None


def later(
    topic: str,
    headers: Headers | None,
    deliver_at: dt.datetime | int | None,
    delay: dt.timedelta | float | None,
) -> tuple[str, Headers, int]:
    """Return the scheduled topic, the headers with the due time, and the timestamp."""
    due = due_ms(deliver_at, delay)
    return scheduled_topic(topic), [*listed(headers), (DUE, str(due))], due


def listed(headers: Headers | None) -> list[tuple[str, Any]]:
    """Return headers as a new list."""
    return list(headers.items() if isinstance(headers, Mapping) else headers or ())


def due_ms(deliver_at: dt.datetime | int | None, delay: dt.timedelta | float | None) -> int:
    """Return when a message is due, in ms since 1970. Exactly one argument is given."""
    if (deliver_at is None) == (delay is None):
        raise UsageError("Pass deliver_at or delay, not both.")
    if isinstance(deliver_at, dt.datetime):
        if deliver_at.tzinfo is None:
            raise UsageError(f"deliver_at={deliver_at} has no time zone: pass tzinfo=timezone.utc.")
        return int(deliver_at.timestamp() * 1000)
    if deliver_at is not None:
        return deliver_at
    seconds = delay.total_seconds() if isinstance(delay, dt.timedelta) else float(delay or 0)
    if seconds < 0:
        raise UsageError(f"delay={delay!r}: pass seconds or a timedelta, not below 0.")
    return int((time.time() + seconds) * 1000)
