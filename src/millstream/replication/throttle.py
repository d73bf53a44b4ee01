"""Throttles the replication of replicas that catch up, so that clients keep their share. Pure.

As in Kafka, only replicas outside the ISR are throttled. The leader throttles if the topic's
`leader.replication.throttled.replicas` names the leader, the follower if
`follower.replication.throttled.replicas` names the follower. A second rate applies to replicas that
a reassignment adds, whatever the topics say (KIP-542). Each rate is a broker's total.

A throttle is a token bucket that may go into debt. Bytes are counted after they were sent, and no
more are sent until the debt is paid. So a batch larger than the rate gets through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.sentinel import INT64_MAX

UNLIMITED: Final = INT64_MAX
_EVERY_REPLICA: Final = ("*",)


class Throttle:
    """One rate in bytes a second."""

    __slots__ = ("_credit", "_updated_at", "bytes_per_second")

    def __init__(self, bytes_per_second: int = UNLIMITED) -> None:
        #: May be changed at any time.
        self.bytes_per_second = bytes_per_second
        #: Bytes that may be sent now; a debt if negative. At most one second's bytes.
        self._credit = float(bytes_per_second)
        self._updated_at = 0.0

    @property
    def is_limited(self) -> bool:
        return self.bytes_per_second < UNLIMITED

    def add(self, size: int, now: float) -> None:
        """Count bytes that were sent or received."""
        if self.bytes_per_second < UNLIMITED:
            self._refill(now)
            self._credit -= size

    def is_exceeded(self, now: float) -> bool:
        if self.bytes_per_second >= UNLIMITED:
            return False
        self._refill(now)
        return self._credit <= 0

    def wait_s(self, now: float) -> float:
        """Return the time until the debt is paid."""
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


class ReplicaLimit:
    """The throttles of one side: of a leader, or of a follower."""

    __slots__ = ("_moving", "_named")

    def __init__(self, named_rate: int = UNLIMITED, moving_rate: int = UNLIMITED) -> None:
        #: For replicas that topic settings name, and for replicas that a reassignment adds.
        self._named = Throttle(named_rate)
        self._moving = Throttle(moving_rate)

    def set_rates(self, named_rate: int, moving_rate: int) -> None:
        self._named.bytes_per_second = named_rate
        self._moving.bytes_per_second = moving_rate

    def of(
        self, state: PartitionRecord, named: Sequence[str], partition: int, follower: int, own: int
    ) -> list[Throttle]:
        """Return the throttles that apply to a follower.

        `named` is the topic's setting for this side. It names the broker `own`: the leader on the
        leader's side, the follower on the follower's side."""
        found: list[Throttle] = []
        if follower in state.isr:
            return found
        if self._named.is_limited and Throttle.covers(named, partition, own):
            found.append(self._named)
        if self._moving.is_limited and follower in state.adding:
            found.append(self._moving)
        return found
