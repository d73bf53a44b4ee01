"""A clock that stands still until a test sets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ManualClock:
    """Both clocks show `now`, in seconds."""

    now: float = 1000.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now
