"""The rate at which a leader serves a follower that catches up while producers write. Pure.

A follower that catches up fetches as fast as it can, and takes processor, memory and disk from
producers. So while producers write to partitions that it follows, the leader sends small pieces
with a pause after each. The rate is `rate_min` bytes a second, or `_SHARE` times the producers'
rate if that is higher, so the follower always gets closer. Without producers there is no limit.
"""

from __future__ import annotations

from typing import Final

from millstream.model.sentinel import INT32_MAX

_SHARE: Final = 2.5
#: Producers below this share of `rate_min` count as idle.
_IDLE_PART: Final = 1 / 64
#: The size of a piece: the bytes that the rate allows in this time, up to a maximum.
_PIECE_S: Final = 1 / 64
_PIECE_BYTES_MAX: Final = 1024 * 1024
#: Time over which the producers' rate is measured.
_WINDOW_S: Final = 0.25
#: Share of the last window's rate that the next window starts with, if producers slow down.
_FADE: Final = 0.5


class CatchUpPace:
    """The pace of one follower. Times are monotonic seconds."""

    __slots__ = ("_produce_rate", "_produced", "_rate_min", "_ready_at", "_since")

    def __init__(self, rate_min: int, now: float) -> None:
        self._rate_min = rate_min
        #: When the next piece may be sent.
        self._ready_at = now
        #: The present window: its start, and the bytes that producers have written in it.
        self._since = now
        self._produced = 0
        #: Bytes a second, measured in earlier windows. The first window assumes that producers
        #: write.
        self._produce_rate = rate_min * _IDLE_PART

    def produced(self, size: int) -> None:
        """Count bytes that producers wrote to partitions of the follower."""
        self._produced += size

    def available_bytes(self, now: float) -> int:
        """Return how many bytes may be sent now; 0 during a pause."""
        limit = self._limit(now)
        if limit is None:
            return INT32_MAX
        if now < self._ready_at:
            return 0
        return max(min(int(limit * _PIECE_S), _PIECE_BYTES_MAX), 1)

    def sent(self, size: int, now: float) -> None:
        limit = self._limit(now)
        if limit is not None:
            self._ready_at = max(self._ready_at, now) + size / limit

    def wait_s(self, now: float) -> float:
        """Return the time until the next piece may be sent."""
        return max(self._ready_at - now, 0.0)

    def _limit(self, now: float) -> float | None:
        """Return the rate in bytes a second; None without a limit."""
        seconds = now - self._since
        if seconds >= _WINDOW_S:
            self._produce_rate = max(self._produced / seconds, self._produce_rate * _FADE)
            self._since, self._produced = now, 0
        if self._produce_rate < self._rate_min * _IDLE_PART:
            return None
        return max(self._produce_rate * _SHARE, self._rate_min)
