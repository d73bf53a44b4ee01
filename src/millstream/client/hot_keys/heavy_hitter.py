"""The most frequent items of a stream, in bounded memory. Pure.

Space-Saving (Metwally, Agrawal, El Abbadi 2005) has `capacity` counters. An item without a counter
takes over the smallest one, and its count as the possible error. So for every item

    count - error  <=  true weight  <=  count

No error exceeds the stream's total weight divided by `capacity`, and every item heavier than that
has a counter.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from millstream.model.error import UsageError

Item = TypeVar("Item", bound=Hashable)


class Hitter(NamedTuple, Generic[Item]):
    """An item, and the bounds of its weight."""

    item: Item
    at_least: int
    at_most: int


class HeavyHitters(Generic[Item]):
    """Counts the most frequent items with the Space-Saving algorithm.

    >>> sketch = HeavyHitters(10)
    >>> for letter in "abracadabra":
    ...     sketch.add(letter)
    >>> sketch.top(1)
    [Hitter(item='a', at_least=5, at_most=5)]
    """

    __slots__ = ("_capacity", "_counts", "_errors", "_heap", "_serial", "total")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise UsageError(f"capacity={capacity}: must be at least 1")
        self._capacity = capacity
        self._counts: dict[Item, int] = {}
        #: The errors of items that took over a counter.
        self._errors: dict[Item, int] = {}
        #: (count, serial, item) per counter. The count may be too low and is corrected when it
        #: reaches the top. The serial keeps items from being compared.
        self._heap: list[tuple[int, int, Item]] = []
        self._serial = 0
        #: The total weight of all items added.
        self.total = 0

    def add(self, item: Item, weight: int = 1) -> None:
        """Count an item."""
        if weight < 0:
            raise UsageError(f"weight={weight}: must not be negative")
        self.total += weight
        count = self._counts.get(item)
        if count is not None:
            self._counts[item] = count + weight
            return
        error = 0
        if len(self._counts) == self._capacity:
            smallest, error = self._pop_smallest()
            del self._counts[smallest]
            self._errors.pop(smallest, None)
        self._counts[item] = error + weight
        if error:
            self._errors[item] = error
        self._push(item)

    def bounds(self, item: Item) -> Hitter[Item]:
        """Return the bounds of an item's weight.

        An item without a counter weighs at most as much as the smallest counter.
        """
        count = self._counts.get(item)
        if count is None:
            return Hitter(item, 0, self.error_max())
        return Hitter(item, count - self._errors.get(item, 0), count)

    def top(self, count: int) -> list[Hitter[Item]]:
        """Return the items with the highest counts, highest first."""
        found = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[:count]
        return [self.bounds(item) for item in found]

    def error_max(self) -> int:
        """Return the largest possible error of any bound."""
        return min(self._counts.values()) if len(self._counts) == self._capacity else 0

    def _pop_smallest(self) -> tuple[Item, int]:
        while True:
            stored, _, item = heappop(self._heap)
            count = self._counts[item]
            if count == stored:
                return item, count
            self._push(item)

    def _push(self, item: Item) -> None:
        self._serial += 1
        heappush(self._heap, (self._counts[item], self._serial, item))
