"""How fast a replica that is not in sync is served while producers write: they come first. Pure.

A follower that was away fetches as fast as it can, and takes from everybody else what there is of
processors, memory and disks. So while producers write to partitions that it follows, it is sent
small pieces, with a rest after each, at `rate_min` bytes a second or `_SHARE` times what producers
write, if that is more: it always gets nearer. Where nobody writes, it is not held back.
"""

from __future__ import annotations

from typing import Final

from millstream.model.sentinel import INT32_MAX

_SHARE: Final = 2.5
#: Writers of less than this part of `rate_min` do not count.
_IDLE_PART: Final = 1 / 64
#: Pieces are what so much time gives, but no larger.
_PIECE_S: Final = 1 / 64
_PIECE_BYTES_MAX: Final = 1024 * 1024
#: Over which producers are watched.
_WINDOW_S: Final = 0.25
#: Of what producers wrote in one window counts in the next, if they wrote less then.
_FADE: Final = 0.5


class CatchUpPace:
    """Of one follower. Times are monotonic seconds."""

    __slots__ = ("_produce_rate", "_produced", "_rate_min", "_ready_at", "_since")

    def __init__(self, rate_min: int, now: float) -> None:
        self._rate_min = rate_min
        #: When it may be sent more.
        self._ready_at = now
        #: The present window: its beginning, and what producers have written in it.
        self._since = now
        self._produced = 0
        #: Bytes a second, as seen in earlier windows. Before there is one, somebody may well write.
        self._produce_rate = rate_min * _IDLE_PART

    def produced(self, size: int) -> None:
        """Producers have written so much to what the follower follows."""
        self._produced += size

    def room(self, now: float) -> int:
        """How many bytes it may be sent now; 0 while it has to rest."""
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
        """Until it may be sent more."""
        return max(self._ready_at - now, 0.0)

    def _limit(self, now: float) -> float | None:
        """Bytes a second; None where it is not held back."""
        seconds = now - self._since
        if seconds >= _WINDOW_S:
            self._produce_rate = max(self._produced / seconds, self._produce_rate * _FADE)
            self._since, self._produced = now, 0
        if self._produce_rate < self._rate_min * _IDLE_PART:
            return None
        return max(self._produce_rate * _SHARE, self._rate_min)
