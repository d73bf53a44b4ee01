"""The thread of a cleaning, its share of the disk, and its cancellation.

What a cleaning does in its thread is `cleaning`; which log it cleans is `cleaner`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from millstream.env.clock import Clock

#: The event loop shares the interpreter with this thread, which pauses after so many records.
_RECORDS_PER_PAUSE: Final = 64
_PAUSE_SECONDS: Final = 0.0001

_P = ParamSpec("_P")
_T = TypeVar("_T")


class CleaningCancelledError(Exception):
    """The cleaning was cancelled and has changed nothing."""


class IoLimit:
    """Limits the bytes per second that all cleanings read and write together; 0 is no limit.

    Used from any thread. A new rate applies at once, also to waiting threads.
    """

    __slots__ = ("_bytes_per_second", "_changed", "_clock", "_due", "_generation")

    def __init__(self, clock: Clock, bytes_per_second: float = 0.0) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._changed = threading.Condition()
        #: When the rate allows the bytes so far, on the monotonic clock.
        self._due = 0.0
        #: Grows with each new rate, which ends the waits for the old one.
        self._generation = 0

    def set_rate(self, bytes_per_second: float) -> None:
        with self._changed:
            if bytes_per_second != self._bytes_per_second:
                self._bytes_per_second = bytes_per_second
                self._due = 0.0
                self._generation += 1
                self._changed.notify_all()

    def wake(self) -> None:
        """Make every waiting thread check its `is_cancelled`."""
        with self._changed:
            self._changed.notify_all()

    def moved(self, size: int, is_cancelled: Callable[[], bool]) -> None:
        """Count bytes that were read or written, and wait until the rate allows them."""
        with self._changed:
            if self._bytes_per_second <= 0:
                return
            now, generation = self._clock.monotonic(), self._generation
            due = self._due = max(self._due, now) + size / self._bytes_per_second
            while now < due and generation == self._generation and not is_cancelled():
                self._changed.wait(due - now)
                now = self._clock.monotonic()


class CleaningThrottle:
    """Throttles one cleaning, gives the event loop its turns, and cancels the cleaning."""

    __slots__ = ("_cancelled", "_limit", "_records")

    def __init__(self, limit: IoLimit) -> None:
        self._limit = limit
        self._cancelled = threading.Event()
        self._records = 0

    def cancel(self) -> None:
        """Make the cleaning raise CleaningCancelledError soon. Callable from any thread."""
        self._cancelled.set()
        self._limit.wake()

    def check(self) -> None:
        """Raise CleaningCancelledError if the cleaning was cancelled."""
        if self._cancelled.is_set():
            raise CleaningCancelledError

    def moved(self, size: int) -> None:
        """Count bytes that were read or written, and wait if the rate is exceeded."""
        self._limit.moved(size, self._cancelled.is_set)
        self.check()

    def worked(self, records: int) -> None:
        """Count handled records, and pause regularly."""
        self._records += records
        if self._records >= _RECORDS_PER_PAUSE:
            self._records = 0
            self._cancelled.wait(_PAUSE_SECONDS)


class CleaningThread:
    """Runs one cleaning in a thread of its own."""

    __slots__ = ("_executor", "throttle")

    def __init__(self, throttle: CleaningThrottle) -> None:
        self.throttle = throttle
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="log-cleaner")

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return the result of `work`. If cancelled, cancel the cleaning and wait for it."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, lambda: work(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.throttle.cancel()
            await asyncio.wait([future])
            future.exception()
            raise

    def close(self) -> None:
        self._executor.shutdown()
