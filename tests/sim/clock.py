"""A machine's clocks: the monotonic clock is the loop's virtual time, the wall clock can jump."""

from __future__ import annotations

from typing import Final

from sim.loop import START_S, VirtualLoop

EPOCH_MS: Final = 1_700_000_000_000


class SimClock:
    __slots__ = ("_loop", "offset_ms")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        #: Error of the wall clock.
        self.offset_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int((self._loop.time() - START_S) * 1000)

    def monotonic(self) -> float:
        return self._loop.time()
