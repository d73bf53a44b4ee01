"""Rate limits: how many attempts may start in a time. Pure.

A limit is written `100/s`, `600/m` or `1000/h`. A bucket fills with tokens at that rate, and each
attempt takes one. The bucket holds one token and what a tenth of a second brings in, so attempts
that were delayed do not start in a large burst.
"""

from __future__ import annotations

import re
from typing import Final

from millstream.client.error import UsageError

_PATTERN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h)\s*\Z")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BURST_S: Final = 0.1


class RateLimit:
    """A token bucket. The caller passes the time and holds the lock."""

    __slots__ = ("_capacity", "_filled_at", "_tokens", "per_second")

    def __init__(self, text: str) -> None:
        match = _PATTERN.match(text) if isinstance(text, str) else None
        if match is None or float(match[1]) <= 0:
            raise UsageError(
                f"rate_limit={text!r}: write a number above 0 with its unit of time, for example "
                "'100/s', '600/m' or '1000/h'."
            )
        self.per_second = float(match[1]) / _SECONDS[match[2]]
        self._capacity = 1.0 + self.per_second * _BURST_S
        self._tokens = self._capacity
        #: When tokens were last added; None before the first request for one.
        self._filled_at: float | None = None

    def has_token(self, now: float) -> bool:
        """Whether an attempt may start."""
        if self._filled_at is not None:
            grown = self._tokens + (now - self._filled_at) * self.per_second
            self._tokens = min(self._capacity, grown)
        self._filled_at = now
        return self._tokens >= 1.0

    def take(self) -> None:
        """Count an attempt that starts. Call `has_token` before."""
        self._tokens -= 1.0
