"""One partition of a coordinator's topic, while this broker leads it.

    LOADING   the records are being replayed; requests are rejected
    ACTIVE    requests are served
    CLOSED    another broker leads, or an append failed; a new shard replaces this one

Owns the journal. The subclass owns the state, and `shards` owns the timers: one heap serves all
shards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from millstream.coordination.effects import Effects, TimerKey
from millstream.coordination.journal import Journal
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.record import Record

#: The partition of the topic, the owner (a group or a transactional id), and the owner's key.
ShardTimer: TypeAlias = tuple[int, str, TimerKey]
#: Sets a timer, or cancels it if the time is None.
SetTimer: TypeAlias = Callable[[ShardTimer, int | None], None]


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LedPartition:
    """A partition of the coordinator's topic that this broker leads."""

    index: int
    #: The leader epoch in which the records are read and appended.
    leader_epoch: int
    journal: Journal


class ShardReplay(ABC):
    """Applies the records of a partition, in log order, to the state of a shard."""

    @abstractmethod
    def apply(self, stored: Record, producer_id: int) -> None:
        """Apply one record. `producer_id` is NO_PRODUCER_ID if the record is in no transaction.
        A damaged record is logged and skipped."""

    @abstractmethod
    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...


class CoordinatorShard(ABC):
    """The shard of one partition."""

    __slots__ = ("_set_timer", "index", "journal", "leader_epoch", "state")

    def __init__(self, led: LedPartition, set_timer: SetTimer) -> None:
        self.index = led.index
        self.leader_epoch = led.leader_epoch
        self.journal = led.journal
        self._set_timer = set_timer
        self.state = ShardState.LOADING

    @abstractmethod
    def replay(self) -> ShardReplay:
        """Return the replay that loads this shard."""

    def open(self, now_ms: int) -> None:
        """Serve requests: all records were replayed."""
        self.state = ShardState.ACTIVE

    def close(self, code: ErrorCode) -> None:
        """Stop serving, and fail all pending replies with `code`."""
        self.state = ShardState.CLOSED
        self.journal.close(code)

    def check_serving(self) -> None:
        """Raise COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR unless the shard is ACTIVE."""
        if self.state is ShardState.LOADING:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.state is ShardState.CLOSED:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)

    @property
    def is_committed(self) -> bool:
        return self.journal.is_committed

    def carry_out(self, owner: str, effects: Effects) -> None:
        """Set the owner's timers, append its records and deliver its replies."""
        for key, due_ms in effects.timers:
            self._set_timer((self.index, owner, key), due_ms)
        self.journal.carry_out(effects)
