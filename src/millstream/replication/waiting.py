"""Callbacks that wait for an offset, without a task per waiter.

`OffsetWaiters.advance` calls every callback whose offset is reached. A callback is removed only by
being called. A request that timed out leaves its callback, which must then ignore the call.

If a callback raises, the failure goes to the request that waits behind it, and the other callbacks
are still called.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.model.reply import Reply


class OffsetWaiters:
    """Callbacks keyed by the offset that they wait for. Event loop only."""

    __slots__ = ("_about", "_failures", "_heap", "_serial")

    def __init__(self, failures: CallbackFailures, about: object) -> None:
        """`about` names the partition in log lines."""
        self._failures = failures
        self._about = about
        self._heap: list[tuple[int, int, Callable[[], None], Reply[Any] | None]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, offset: int, callback: Callable[[], None], reply: Reply[Any] | None) -> None:
        """Call `callback` in the first `advance` to `offset` or beyond.

        `reply` belongs to the request that waits; None if no single request does."""
        self._serial += 1
        heappush(self._heap, (offset, self._serial, callback, reply))

    def advance(self, offset: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= offset:
            _, _, callback, reply = heappop(heap)
            try:
                callback()
            except Exception as error:  # noqa: BLE001  # given to the request, or logged
                self._failures.fail_reply(CallbackKind.OFFSET_WAITER, error, reply, self._about)

    def fire_all(self) -> None:
        """Call every callback, whatever its offset: leadership or the partition is gone."""
        heap, self._heap = self._heap, []
        for _, _, callback, reply in heap:
            try:
                callback()
            except Exception as error:  # noqa: BLE001  # given to the request, or logged
                self._failures.fail_reply(CallbackKind.OFFSET_WAITER, error, reply, self._about)
