"""Merges the records that `salting` has spread over partitions.

The records of a hot key are in several logs, so their order is lost:

- `OrderedMerge` restores it for a consumer that has all partitions of the topic: per key, the
  records of one producer in the order in which it sent them.
- `PartialTotals` needs no order: consumers of single partitions each fold what they read of a
  key, and their parts are folded again.

Pure: a record is any object of the caller. Not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from millstream.client.hot_keys.salting import Turn
from millstream.model.error import MillstreamError

T = TypeVar("T")


class MergeOverflowError(MillstreamError):
    """Too many records wait for earlier ones; the last one was not accepted.

    Pause its partition, read on in those that are behind, and push it again.
    """


class _Series(Generic[T]):
    """The records of one producer with one key.

    Slot `s` is the partition with the numbers `s`, `s + spread`, ... It is read in order, so a
    number that it has passed does not come any more.
    """

    __slots__ = ("_numbers", "_passed", "_released", "held")

    def __init__(self, spread: int) -> None:
        #: The highest number seen in each slot; -1 before the first.
        self._passed = [-1] * spread
        #: Every number up to this one was released, or is no longer awaited.
        self._released = -1
        #: Waiting records, and their numbers as a heap.
        self.held: dict[int, T] = {}
        self._numbers: list[int] = []

    def push(self, turn: Turn, record: T) -> list[T]:
        """Add a record. Return the records whose turn has come."""
        number = turn.number
        if number <= self._released:
            # Read again after a rebalance, or after the merge stopped waiting for it.
            return [record]
        self._passed[turn.slot] = max(self._passed[turn.slot], number)
        if number not in self.held:
            heappush(self._numbers, number)
        self.held[number] = record
        released: list[T] = []
        while self._numbers and not any(map(self._is_behind, range(len(self._passed)))):
            released.append(self._release())
        return released

    def awaits(self, slot: int) -> bool:
        """Whether records wait for one of this slot."""
        return bool(self._numbers) and self._is_behind(slot)

    def drain(self) -> list[T]:
        """Return all waiting records in order."""
        return [self._release() for _ in range(len(self._numbers))]

    def _release(self) -> T:
        self._released = heappop(self._numbers)
        return self.held.pop(self._released)

    def _is_behind(self, slot: int) -> bool:
        """Whether a slot may still bring a number below the lowest waiting one."""
        lowest = self._numbers[0]
        before = lowest - (lowest - slot) % len(self._passed)
        return before > max(self._released, self._passed[slot])


class OrderedMerge(Generic[T]):
    """Returns the records of hot keys in order; those of other keys pass through.

    A record waits while an earlier one can still come. After a restart the first record of a key
    waits until all its partitions have returned one. A consumer that has reached the end of all
    partitions calls `drain`: nothing comes before the waiting records any more.

    About `held_max` records wait at most. No offset may be committed past a waiting record.
    """

    def __init__(self, held_max: int = 100_000, series_max: int = 10_000) -> None:
        self._held_max = held_max
        self._series_max = series_max
        #: By key, session and spread, the most recently used last.
        self._series: OrderedDict[tuple[bytes, str, int], _Series[T]] = OrderedDict()
        #: The number of waiting records.
        self.held = 0

    def push(self, key: bytes | None, turn: Turn | None, record: T) -> list[T]:
        """Add a record. Return the records whose turn has come, possibly with this one."""
        if key is None or turn is None:
            return [record]
        name = (key, turn.session, turn.spread)
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = _Series(turn.spread)
            self._forget_idle()
        self._series.move_to_end(name)
        if self.held >= self._held_max and not series.awaits(turn.slot):
            raise MergeOverflowError(
                f"{self.held} records of hot keys wait for earlier ones, and so would one of "
                f"{key[:40]!r}: a partition is read far behind the others"
            )
        before = len(series.held)
        released = series.push(turn, record)
        self.held += len(series.held) - before
        return released

    def drain(self) -> list[T]:
        """Return all waiting records, each key's in order. Call it at the end of all partitions."""
        self.held = 0
        return [record for series in self._series.values() for record in series.drain()]

    def waiting(self) -> list[T]:
        """Return the waiting records.

        The offset to commit in a partition is at most that of its first waiting record.
        """
        return [record for series in self._series.values() for record in series.held.values()]

    def _forget_idle(self) -> None:
        """Drop the least recently used series without waiting records, if there are too many."""
        if len(self._series) <= self._series_max:
            return
        idle = next((name for name, series in self._series.items() if not series.held), None)
        if idle is not None:
            del self._series[idle]


class PartialTotals(Generic[T]):
    """Folds what consumers of single partitions found of a key.

    Each source (a partition) reports its total repeatedly; the newest one counts. So a source that
    repeats itself, as after a crash, changes nothing.

    >>> totals = PartialTotals(lambda one, other: one + other)
    >>> totals.update(b"celebrity", 0, 10)
    10
    >>> totals.update(b"celebrity", 1, 5)
    15
    >>> totals.update(b"celebrity", 0, 12)
    17
    """

    def __init__(self, combine: Callable[[T, T], T]) -> None:
        self._combine = combine
        self._parts: dict[bytes, dict[object, T]] = {}

    def update(self, key: bytes, source: object, part: T) -> T:
        """Set a source's total of a key. Return the total of all sources."""
        self._parts.setdefault(key, {})[source] = part
        return self.total(key)

    def total(self, key: bytes) -> T:
        """Return the total of all sources. Raises KeyError for an unknown key."""
        first, *others = self._parts[key].values()
        for part in others:
            first = self._combine(first, part)
        return first
