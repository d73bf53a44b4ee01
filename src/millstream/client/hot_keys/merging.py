"""What `salting` has spread, brought together again by who reads it.

The records of a hot key lie in several logs, so their order is lost:

- `OrderedMerge` gives it back to a reader that has all partitions of the topic: of each key, the
  records of one producer in the order in which it placed them.
- `PartialTotals` needs no order: readers of single partitions each fold what they see of a key, and
  their parts are folded again.

Pure: records are whatever the caller has. Not for several threads at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from millstream.client.hot_keys.salting import Turn

T = TypeVar("T")


class MergeOverflowError(Exception):
    """More records wait for their turn than may; the one at hand was not taken.

    Pause its partition, read on from those that are behind, and give it again."""


class _Series(Generic[T]):
    """The records of one producer with one key. Lane `l` is the partition with the numbers
    `l`, `l + spread`, ...; it is read in order, so one that it has passed by will not come."""

    __slots__ = ("_numbers", "_passed", "_released", "held")

    def __init__(self, spread: int) -> None:
        #: The highest number seen in each lane; -1 while there was none.
        self._passed = [-1] * spread
        #: Every number up to this one was released, or is given up.
        self._released = -1
        #: Records that wait, and their numbers as a heap.
        self.held: dict[int, T] = {}
        self._numbers: list[int] = []

    def push(self, turn: Turn, record: T) -> list[T]:
        number = turn.number
        if number <= self._released:
            # Read again after a rebalance, or later than it was waited for.
            return [record]
        self._passed[turn.lane] = max(self._passed[turn.lane], number)
        if number not in self.held:
            heappush(self._numbers, number)
        self.held[number] = record
        released: list[T] = []
        while self._numbers and not any(map(self._is_behind, range(len(self._passed)))):
            released.append(self._release())
        return released

    def awaits(self, lane: int) -> bool:
        """Whether records wait for one of this lane."""
        return bool(self._numbers) and self._is_behind(lane)

    def drain(self) -> list[T]:
        return [self._release() for _ in range(len(self._numbers))]

    def _release(self) -> T:
        self._released = heappop(self._numbers)
        return self.held.pop(self._released)

    def _is_behind(self, lane: int) -> bool:
        """Whether a lane may still bring a number below the lowest that waits."""
        lowest = self._numbers[0]
        before = lowest - (lowest - lane) % len(self._passed)
        return before > max(self._released, self._passed[lane])


class OrderedMerge(Generic[T]):
    """Gives the records of hot keys back in their order; those of other keys pass.

    A record waits while one before it can still come. After a restart the first one of a key waits
    until all its partitions have shown one. A reader that has reached the end of all partitions
    knows that nothing more comes before what waits, and calls `drain`.

    About `held_max` records wait at most. No offset may be committed past a record that waits.
    """

    def __init__(self, held_max: int = 100_000, series_max: int = 10_000) -> None:
        self._held_max = held_max
        self._series_max = series_max
        #: By key, session and spread, the one used last at the end.
        self._series: OrderedDict[tuple[bytes, str, int], _Series[T]] = OrderedDict()
        #: How many records wait.
        self.held = 0

    def push(self, key: bytes | None, turn: Turn | None, record: T) -> list[T]:
        """Take a record; returns those whose turn it is now, this one perhaps among them."""
        if key is None or turn is None:
            return [record]
        name = (key, turn.session, turn.spread)
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = _Series(turn.spread)
            self._forget_idle()
        self._series.move_to_end(name)
        if self.held >= self._held_max and not series.awaits(turn.lane):
            raise MergeOverflowError(
                f"{self.held} records of hot keys wait for earlier ones, and so would one of "
                f"{key[:40]!r}: some partition is read far behind the others"
            )
        before = len(series.held)
        released = series.push(turn, record)
        self.held += len(series.held) - before
        return released

    def drain(self) -> list[T]:
        """All that waits, each key's in order; for when the end of all partitions is reached."""
        self.held = 0
        return [record for series in self._series.values() for record in series.drain()]

    def waiting(self) -> list[T]:
        """The records that wait: offsets may be committed only up to the first of a partition."""
        return [record for series in self._series.values() for record in series.held.values()]

    def _forget_idle(self) -> None:
        """Producers come and go: of too many series, the longest unused that nothing waits in."""
        if len(self._series) <= self._series_max:
            return
        idle = next((name for name, series in self._series.items() if not series.held), None)
        if idle is not None:
            del self._series[idle]


class PartialTotals(Generic[T]):
    """Folds what readers of single partitions found of a key.

    Each source (a partition) says its total so far, again and again; the newest counts. So a source
    that says the same twice, as after a crash, changes nothing.

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
        """A source's total of a key changed; returns that of all sources."""
        self._parts.setdefault(key, {})[source] = part
        return self.total(key)

    def total(self, key: bytes) -> T:
        """Raises KeyError for a key that no source has told of."""
        first, *others = self._parts[key].values()
        for part in others:
            first = self._combine(first, part)
        return first
