"""A limit on bytes a second for replicas that catch up, so that they leave room for clients. Pure.

Kafka's rule: only replicas outside of the ISR are held back, and only those that the topic's
`leader.replication.throttled.replicas` or `follower.replication.throttled.replicas` names. The rate
is of the broker, over all of them.

A bucket that may go into debt: what was sent is counted afterwards, and nothing more is until the
debt is paid. So a batch larger than the rate gets through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNLIMITED: Final = 2**63 - 1
_EVERY_REPLICA: Final = ("*",)


class Throttle:
    __slots__ = ("_credit", "_updated_at", "bytes_per_second")

    def __init__(self, bytes_per_second: int = UNLIMITED) -> None:
        #: May be changed at any time.
        self.bytes_per_second = bytes_per_second
        #: Bytes that may be sent now; below 0 a debt. At most what one second gives.
        self._credit = float(bytes_per_second)
        self._updated_at = 0.0

    def add(self, size: int, now: float) -> None:
        """Count bytes that were sent or received under the limit."""
        if self.bytes_per_second < UNLIMITED:
            self._refill(now)
            self._credit -= size

    def is_exceeded(self, now: float) -> bool:
        if self.bytes_per_second >= UNLIMITED:
            return False
        self._refill(now)
        return self._credit <= 0

    def wait_s(self, now: float) -> float:
        """Time until the debt is paid."""
        return -self._credit / self.bytes_per_second if self.is_exceeded(now) else 0.0

    def _refill(self, now: float) -> None:
        rate = self.bytes_per_second
        self._credit = min(self._credit + (now - self._updated_at) * rate, rate)
        self._updated_at = now

    @staticmethod
    def covers(replicas: Sequence[str], partition: int, broker_id: int) -> bool:
        """Whether a topic's setting names this replica."""
        if not replicas:
            return False
        return tuple(replicas) == _EVERY_REPLICA or f"{partition}:{broker_id}" in replicas
