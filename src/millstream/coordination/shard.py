"""One partition of a coordinator's topic, while this broker leads it.

    LOADING   its records are being replayed; nobody is served
    ACTIVE    what lives in it is served and changed
    CLOSED    leadership went elsewhere, or the records could not be written: this shard is history

Owns the journal that makes changes last. What lives in a shard is its subclass's; timers are the
coordinator's, as one heap serves all shards.
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

#: Partition of the topic, who lives there (a group, a transactional id), and its own key.
ShardTimer: TypeAlias = tuple[int, str, TimerKey]
#: Sets a timer, or cancels it where the time is None.
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
    """Takes the records of a partition in their order, and makes a shard's state of them."""

    @abstractmethod
    def apply(self, stored: Record, producer_id: int) -> None:
        """One record; with a producer id if it is part of a transaction, else -1. Damage is
        logged, not raised."""

    @abstractmethod
    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...


class CoordinatorShard(ABC):
    """See the module's text."""

    __slots__ = ("_set_timer", "index", "journal", "leader_epoch", "state")

    def __init__(self, led: LedPartition, set_timer: SetTimer) -> None:
        self.index = led.index
        self.leader_epoch = led.leader_epoch
        self.journal = led.journal
        self._set_timer = set_timer
        self.state = ShardState.LOADING

    @abstractmethod
    def replay(self) -> ShardReplay:
        """For the records of a shard that is LOADING."""

    def open(self, now_ms: int) -> None:
        """All records were replayed: serve."""
        self.state = ShardState.ACTIVE

    def close(self, code: ErrorCode) -> None:
        """Serve no more; everybody who waits is told `code`."""
        self.state = ShardState.CLOSED
        self.journal.close(code)

    def check_serving(self) -> None:
        if self.state is ShardState.LOADING:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.state is ShardState.CLOSED:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)

    @property
    def is_committed(self) -> bool:
        return self.journal.is_committed

    def carry_out(self, owner: str, effects: Effects) -> None:
        for key, due_ms in effects.timers:
            self._set_timer((self.index, owner, key), due_ms)
        self.journal.carry_out(effects)
