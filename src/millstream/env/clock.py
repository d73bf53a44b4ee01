"""Clocks: wall-clock time for records and people, monotonic time for durations."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch. May jump in either direction."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back. The event loop uses the same time."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
