"""The output of a group or a transactional id: replies, records and timers.

Both are pure state machines. A state machine takes the time and an event, changes its state, and
returns `Effects`. Its shard carries them out:

- `records` are appended, together and in this order, to the partition of `__consumer_offsets` or
  `__transaction_state`. Replaying them restores the state. If the append fails, the whole partition
  is reloaded, so a state machine never undoes a change. With a `producer`, the records are part of
  its transaction and take effect once it commits.
- `replies` are pairs of a `Reply`, which came with the request, and its result. They are delivered
  once these records and all records before them are committed.
- `timers` are (key, due) pairs. Setting a key again replaces its timer; None cancels it. An expired
  timer comes back as the event `expire(now_ms, key)`. The state machine chooses the keys: by
  convention (purpose, member id), with "" if the timer is not for a member.

Times are milliseconds of the wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from millstream.model.reply import Reply

T = TypeVar("T")

TimerKey: TypeAlias = tuple[str, str]
#: Encoded key and value; a value of None is a tombstone.
LogRecord: TypeAlias = tuple[bytes, bytes | None]


class ProducerIdAndEpoch(NamedTuple):
    """The identity of a transactional producer in its batches."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Effects:
    """The replies, records and timers that one event causes."""

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
        """Append the effects of another step of the same event."""
        self.replies += other.replies
        self.records += other.records
        self.timers += other.timers
