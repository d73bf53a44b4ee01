"""What a group or a transactional id asks of the world around it: replies, records and timers.

Either is a pure state machine. It is given the time and an event, changes its state, and returns
`Effects`; whoever gave it the event carries them out:

- `records` are appended, together and in this order, to its partition of `__consumer_offsets` or
  `__transaction_state`. Replaying them gives the state again. If they can't be appended, the whole
  partition is loaded anew, so a state machine never needs to undo anything. With a `producer`, they
  are part of its transaction, and count once that is committed.
- `replies` are pairs of a `Reply`, which came with the event of the request that waits, and its
  result. They are delivered once those records, and all that were appended before them, are
  committed.
- `timers` are (key, due) pairs. Setting a key anew replaces its timer; None cancels it. A timer
  that falls due comes back as the event `expire(now_ms, key)`. Keys are the state machine's own; by
  convention (what, member id), with "" where no member is meant.

Times are milliseconds of the wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from millstream.model.reply import Reply

T = TypeVar("T")

TimerKey: TypeAlias = tuple[str, str]
#: Key and value as they lie in the log; None is a tombstone.
LogRecord: TypeAlias = tuple[bytes, bytes | None]


class ProducerIdAndEpoch(NamedTuple):
    """A transactional producer as its batches name it."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Effects:
    """See the module's text."""

    replies: list[tuple[Reply[Any], Any]] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    timers: list[tuple[TimerKey, int | None]] = field(default_factory=list)
    producer: ProducerIdAndEpoch | None = None

    def deliver(self, reply: Reply[T], result: T) -> None:
        self.replies.append((reply, result))

    def append(self, key: bytes, value: bytes | None) -> None:
        self.records.append((key, value))

    def set_timer(self, key: TimerKey, due_ms: int) -> None:
        self.timers.append((key, due_ms))

    def cancel_timer(self, key: TimerKey) -> None:
        self.timers.append((key, None))

    def include(self, other: Effects) -> None:
        """Add what another step of the same event asks for, after what is here."""
        self.replies += other.replies
        self.records += other.records
        self.timers += other.timers
