"""Waiting for an offset, without a task per waiter.

`OffsetWaiters` holds callbacks for "once this offset is passed", cheap to add, and fired in one go
by whoever moves the offset. Callbacks are removed by being fired only; one that gave up (a timeout)
stays until then and must ignore the call.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class OffsetWaiters:
    """Callbacks keyed by the offset that they wait for. Event loop only."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, offset: int, callback: Callable[[], None]) -> None:
        """Have `callback` called by the first `advance` to `offset` or beyond."""
        self._serial += 1
        heappush(self._heap, (offset, self._serial, callback))

    def advance(self, offset: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= offset:
            heappop(heap)[2]()

    def fire_all(self) -> None:
        """Call everybody back, whatever they wait for: leadership or the partition is gone."""
        heap, self._heap = self._heap, []
        for _, _, callback in heap:
            callback()
