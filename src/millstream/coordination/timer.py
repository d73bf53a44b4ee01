"""Timers by key, many of them and moved often, without a task or a loop timer for each.

A heap holds an entry per key. Moving a timer to later, as each heartbeat does, only notes the new
time: the entry is put back when it comes up. Cancelled timers leave their entries behind, and the
heap is rebuilt once most entries are such. Knows nothing of clocks: the owner says what time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)

#: Entries below which a heap is not worth rebuilding.
_REBUILD_MIN: Final = 1024


class TimerHeap(Generic[_K]):
    """See the module's text. Event loop only."""

    __slots__ = ("_due", "_heap", "_queued", "_serial")

    def __init__(self) -> None:
        self._due: dict[_K, int] = {}
        #: When the earliest entry of each key comes up; keys may have later ones as well.
        self._queued: dict[_K, int] = {}
        #: (time, serial, key); the serial keeps keys from being compared.
        self._heap: list[tuple[int, int, _K]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: _K) -> bool:
        return key in self._due

    def set(self, key: _K, due_ms: int) -> None:
        self._due[key] = due_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or due_ms < queued_ms:
            self._push(key, due_ms)

    def cancel(self, key: _K) -> None:
        if self._due.pop(key, None) is not None:
            self._rebuild_if_stale()

    def cancel_where(self, is_meant: Callable[[_K], bool]) -> None:
        for key in [key for key in self._due if is_meant(key)]:
            del self._due[key]
        self._rebuild_if_stale()

    def next_ms(self) -> int | None:
        """When to call `pop_due` next, which may find nothing then; None if there are none."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> _K | None:
        """Return the key whose time came first, which is then no longer set; None if none is due.

        There is no call for several keys: what the owner does for one key may cancel or move the
        next, and a key that was popped can't be called back."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            queued_ms, _, key = heappop(heap)
            if self._queued.get(key) == queued_ms:
                del self._queued[key]
            due_ms = self._due.get(key)
            if due_ms is None:
                continue
            if due_ms <= now_ms:
                del self._due[key]
                return key
            if key not in self._queued:
                self._push(key, due_ms)
        return None

    def _push(self, key: _K, due_ms: int) -> None:
        self._serial += 1
        self._queued[key] = due_ms
        heappush(self._heap, (due_ms, self._serial, key))

    def _rebuild_if_stale(self) -> None:
        if len(self._heap) < max(_REBUILD_MIN, 2 * len(self._due)):
            return
        self._queued = dict(self._due)
        self._heap = [
            (due_ms, serial, key) for serial, (key, due_ms) in enumerate(self._due.items())
        ]
        self._serial = len(self._heap)
        heapify(self._heap)
