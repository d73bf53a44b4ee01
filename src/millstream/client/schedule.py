"""Messages for later: which topic they wait in, and how they say when they are due. Pure.

They wait in `<topic>.scheduled`; the workers of every group that reads the topic take them from
there when they are due. Their timestamp is that time as well, so that retention counts from it:
else what is sent for next month would be deleted next week.

A worker holds messages that are not due. Where those are many, it moves the ones that are due late
to `<topic>.parked`, each partition of which has one waiting time: `PARKED_S`. Whatever is in a
partition leaves it in the order in which it came, so that nothing waits for a message that is due
later. A message that has waited is moved on, to a partition with a shorter time, until it is due
soon. It is moved about a dozen times for each waiting time at most.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from millstream.client.error import UsageError
from millstream.model.sentinel import INT64_MAX

Headers: TypeAlias = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
#: Header: not before, in milliseconds since 1970, as text.
DUE: Final = "millstream.due"
#: Header: how long it stays in its partition of the parked topic, in the same form.
PARKED: Final = "millstream.parked"
#: How long messages wait in each partition of a parked topic: from half a minute to five days.
PARKED_S: Final = (30, 300, 3600, 36_000, 432_000)
#: What a scheduled topic needs: timestamps may lie in the future.
TOPIC_CONFIG: Final = {"message.timestamp.after.max.ms": str(INT64_MAX)}


def scheduled_topic(topic: str) -> str:
    return f"{topic}.scheduled"


def parked_topic(topic: str) -> str:
    return f"{topic}.parked"


def parked_level(wait_s: float) -> int | None:
    """The partition of the parked topic for a message that is due so much later; None if soon."""
    fitting = [number for number, parked_s in enumerate(PARKED_S) if parked_s <= wait_s]
    return fitting[-1] if fitting else None


def later(
    topic: str,
    headers: Headers | None,
    deliver_at: dt.datetime | int | None,
    delay: dt.timedelta | float | None,
) -> tuple[str, Headers, int]:
    """The topic to send to instead, the headers with the time in them, and the timestamp."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    due = due_ms(deliver_at, delay)
    return scheduled_topic(topic), [*pairs, (DUE, str(due))], due


def due_ms(deliver_at: dt.datetime | int | None, delay: dt.timedelta | float | None) -> int:
    """When a message is due; exactly one of the two is given."""
    if (deliver_at is None) == (delay is None):
        raise UsageError("Give deliver_at or delay, one of the two.")
    if isinstance(deliver_at, dt.datetime):
        if deliver_at.tzinfo is None:
            raise UsageError(f"deliver_at={deliver_at} has no time zone: give tzinfo=timezone.utc.")
        return int(deliver_at.timestamp() * 1000)
    if deliver_at is not None:
        return deliver_at
    seconds = delay.total_seconds() if isinstance(delay, dt.timedelta) else float(delay or 0)
    if seconds < 0:
        raise UsageError(f"delay={delay!r}: give seconds, or a timedelta, from now on.")
    return int((time.time() + seconds) * 1000)
