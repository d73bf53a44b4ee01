"""The most frequent items of a stream, in memory that does not grow with it. Pure.

Space-Saving (Metwally, Agrawal, El Abbadi 2005): `capacity` counters. An item without one takes
over the smallest, and with it that one's count as its possible error. So for every item

    count - error  <=  true weight  <=  count

no error is above the stream's total weight divided by `capacity`, and every item heavier than that
has a counter.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Hitter(NamedTuple, Generic[Item]):
    """An item, and the bounds of its weight."""

    item: Item
    at_least: int
    at_most: int


class HeavyHitters(Generic[Item]):
    """See the module's text.

    >>> sketch = HeavyHitters(10)
    >>> for letter in "abracadabra":
    ...     sketch.add(letter)
    >>> sketch.top(1)
    [Hitter(item='a', at_least=5, at_most=5)]
    """

    __slots__ = ("_capacity", "_counts", "_errors", "_heap", "_serial", "total")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a capacity of {capacity}; at least one item must be counted")
        self._capacity = capacity
        self._counts: dict[Item, int] = {}
        #: Of items that took over another one's counter.
        self._errors: dict[Item, int] = {}
        #: (count, serial, item), one for each counter, its count perhaps too low: it is put right
        #: when it comes up. The serial keeps items from being compared.
        self._heap: list[tuple[int, int, Item]] = []
        self._serial = 0
        #: The weight of all that was added.
        self.total = 0

    def add(self, item: Item, weight: int = 1) -> None:
        if weight < 0:
            raise ValueError(f"a weight of {weight}; weights only add up")
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
        """What is known of an item's weight. One without a counter may still have as much as the
        smallest counter."""
        count = self._counts.get(item)
        if count is None:
            return Hitter(item, 0, self.error_max())
        return Hitter(item, count - self._errors.get(item, 0), count)

    def top(self, count: int) -> list[Hitter[Item]]:
        """The items with the highest counts, highest first."""
        found = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[:count]
        return [self.bounds(item) for item in found]

    def error_max(self) -> int:
        """No bound is off by more than this."""
        return min(self._counts.values()) if len(self._counts) == self._capacity else 0

    def _pop_smallest(self) -> tuple[Item, int]:
        while True:
            noted, _, item = heappop(self._heap)
            count = self._counts[item]
            if count == noted:
                return item, count
            self._push(item)

    def _push(self, item: Item) -> None:
        self._serial += 1
        heappush(self._heap, (self._counts[item], self._serial, item))
