"""The state of one follower as its leader knows it, from the follower's fetches. Pure.

A follower that fetches from an offset has every record below it. That is its only acknowledgement.
The state belongs to one leader epoch and is dropped with it.

"Caught up" at a time means: at that time the follower had every record of the leader. A fetch at
the leader's log end proves that for now. Under steady load a follower is never seen there. But a
fetch at or past the log end that the leader had at the previous fetch proves it for the time of
that previous fetch.

The proof counts for one registration. A follower that registers anew may be far behind, or may have
lost records. It counts as caught up only when its own fetches show it. Until then the high
watermark does not wait for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.model.sentinel import NO_EPOCH, NO_OFFSET

#: Earlier than every time of a clock.
NEVER: Final = float("-inf")


class FollowerFetch(NamedTuple):
    """A follower's position in one partition, as one fetch shows it."""

    broker_id: int
    #: The follower's registration.
    broker_epoch: int
    #: The follower's log end.
    offset: int
    log_start_offset: int
    #: Monotonic seconds.
    now: float


class FollowerState:
    """One follower of a partition that this broker leads."""

    __slots__ = (
        "_fetched_at",
        "_leader_end_offset",
        "broker_epoch",
        "broker_id",
        "caught_up_at",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, caught_up_at: float = NEVER) -> None:
        """`caught_up_at` gives a member of the ISR time for its first fetch."""
        self.broker_id = broker_id
        #: The registration that the state belongs to.
        self.broker_epoch = NO_EPOCH
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        #: The latest time at which the follower had every record. It never moves back within one
        #: registration.
        self.caught_up_at = caught_up_at
        #: Time of the previous fetch, and the leader's log end at that time.
        self._fetched_at = NEVER
        self._leader_end_offset = 0

    def fetched(self, fetch: FollowerFetch, leader_end_offset: int) -> bool:
        """Record a fetch; return False if its registration has been replaced."""
        if fetch.broker_epoch < self.broker_epoch:
            return False
        if self.broker_epoch not in (NO_EPOCH, fetch.broker_epoch):
            self.caught_up_at = self._fetched_at = NEVER
        self.broker_epoch = fetch.broker_epoch
        if fetch.offset >= leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, fetch.now)
        elif fetch.offset >= self._leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, self._fetched_at)
        # It may move back: a broker that lost its page cache restarts with fewer records.
        self.log_end_offset = fetch.offset
        self.log_start_offset = fetch.log_start_offset
        self._fetched_at = fetch.now
        self._leader_end_offset = leader_end_offset
        return True

    def is_caught_up(self, leader_end_offset: int, now: float, lag_s_max: float) -> bool:
        """Whether the follower has every record, or had every record within `lag_s_max`."""
        if self.log_end_offset >= leader_end_offset:
            return True
        return now - self.caught_up_at <= lag_s_max
