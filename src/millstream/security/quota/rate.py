"""Rates over windows of time, and token buckets, as Kafka measures quotas. Pure.

A `RateWindow` has samples of `window_s` seconds. The rate is the sum of the samples over the time
since the oldest one, which counts as at least `samples - 1` whole samples. So a client may use up
the quota of that time in one burst. A sample is dropped `samples * window_s` seconds after its last
event.

A `TokenBucket` fills with the quota's rate up to `samples * window_s` seconds of it. Below zero,
the quota is exhausted.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class WindowOptions(NamedTuple):
    """The number of samples, and the length of each."""

    samples: int = 11
    window_s: float = 1.0

    @property
    def whole_s(self) -> float:
        """The least time over which a rate is measured."""
        return (self.samples - 1) * self.window_s or self.window_s


class _Sample:
    __slots__ = ("last_at", "started_at", "value")

    def __init__(self, now: float) -> None:
        self.started_at = now
        self.last_at = now
        self.value = 0.0


class RateWindow:
    """The rate of one kind of event. Times are in seconds, from any clock that never goes back."""

    __slots__ = ("_options", "_samples", "_total")

    def __init__(self, options: WindowOptions) -> None:
        self._options = options
        #: Oldest first; `_total` is the sum of their values.
        self._samples: deque[_Sample] = deque()
        self._total = 0.0

    def record(self, value: float, now: float) -> None:
        """Add an event. A negative value takes back an earlier one."""
        self._drop_old(now)
        if not self._samples or now - self._samples[-1].started_at >= self._options.window_s:
            self._samples.append(_Sample(now))
        sample = self._samples[-1]
        sample.value += value
        sample.last_at = now
        self._total += value

    def rate(self, now: float) -> float:
        """Return the events per second."""
        self._drop_old(now)
        return self._total / self._elapsed_s(now)

    def excess_s(self, limit: float, now: float) -> float:
        """Return the seconds without events after which the rate is down to `limit`; 0 if it is not
        above."""
        self._drop_old(now)
        elapsed_s = self._elapsed_s(now)
        return max(self._total / limit - elapsed_s, 0.0)

    def _elapsed_s(self, now: float) -> float:
        samples, window_s = self._options
        elapsed_s = now - self._samples[0].started_at if self._samples else 0.0
        missing = samples - 1 - int(elapsed_s / window_s)
        if missing > 0:
            elapsed_s += missing * window_s
        # Kafka takes at least a millisecond. A quota of one sample would reject every first event.
        return max(elapsed_s, window_s)

    def _drop_old(self, now: float) -> None:
        samples = self._samples
        expiry_s = self._options.samples * self._options.window_s
        while samples and now - samples[0].last_at >= expiry_s:
            self._total -= samples.popleft().value
        if not samples:
            # Sums of floats drift.
            self._total = 0.0


class TokenBucket:
    """The tokens of one client. Times are in seconds."""

    __slots__ = ("_options", "_tokens", "_updated_at")

    def __init__(self, options: WindowOptions) -> None:
        self._options = options
        #: None before the first use: the bucket is full then.
        self._tokens: float | None = None
        self._updated_at = 0.0

    def take(self, tokens: float, limit: float, now: float) -> float:
        """Take tokens, also if there are too few. Return the seconds until the bucket is back at
        zero; 0 if it is not below."""
        left = self._refill(limit, now) - tokens
        self._tokens = left
        return max(-left / limit, 0.0)

    def exhausted_s(self, limit: float, now: float) -> float:
        """Return the seconds until the bucket is back at zero, without taking tokens."""
        return max(-self._refill(limit, now) / limit, 0.0)

    def _refill(self, limit: float, now: float) -> float:
        burst = self._options.samples * self._options.window_s * limit
        if self._tokens is None:
            tokens = burst
        else:
            tokens = min(burst, self._tokens + limit * (now - self._updated_at))
        self._tokens = tokens
        self._updated_at = now
        return tokens
