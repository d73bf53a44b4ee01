"""A heap of many timers by key, without an event loop timer for each.

The heap holds an entry per key. Moving a timer to a later time, as each heartbeat does, only stores
the new time; the entry is pushed again when it reaches the top. Cancelled timers leave stale
entries, and the heap is rebuilt once most entries are stale. The owner passes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)

#: Smaller heaps are not rebuilt.
_REBUILD_MIN: Final = 1024


class TimerHeap(Generic[_K]):
    """Timers by key. Event loop only."""

    __slots__ = ("_due", "_heap", "_queued", "_serial")

    def __init__(self) -> None:
        self._due: dict[_K, int] = {}
        #: The time of the earliest entry of each key; a key may have later entries too.
        self._queued: dict[_K, int] = {}
        #: (time, serial, key). The serial breaks ties, because keys are not comparable.
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
        """Return when to call `pop_due` next; None without timers. The call may return None."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> _K | None:
        """Remove and return the key of the earliest timer that is due; None if none is.

        Only one key is popped at a time, because handling it may cancel or move the next one."""
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
