"""What a leader knows of one follower, from the follower's own fetches. Pure.

A follower that asks for an offset has everything below it: that is the only acknowledgement there
is. Its state is of one leader epoch and is thrown away with it.

"Caught up" at a time means: at that time it had all that the leader had. A fetch at the leader's
log end proves it for now. Under steady load a follower is never seen there; but a fetch at or past
the log end that the leader had at the fetch before proves it for the time of that earlier fetch.

What was proved counts for the registration that proved it. A follower that registered anew was away
and may be far behind, or have lost what it had: it is not caught up until it has been seen to be,
so that it does not hold back what producers wait for while it catches up.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.model.sentinel import NO_EPOCH, NO_OFFSET

#: Before every time that a clock can tell.
NEVER: Final = float("-inf")


class FollowerFetch(NamedTuple):
    """One follower's fetch of one partition, as far as it says something about the follower."""

    broker_id: int
    #: Which registration of the broker sends it.
    broker_epoch: int
    #: The follower's log end: it has everything below.
    offset: int
    log_start_offset: int
    #: Monotonic seconds.
    now: float


class FollowerState:
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
        """`caught_up_at`: a member of the ISR gets time for its first fetch."""
        self.broker_id = broker_id
        #: The registration that the state is of.
        self.broker_epoch = NO_EPOCH
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        #: The latest time at which it is known to have had everything. Never moves back under one
        #: registration.
        self.caught_up_at = caught_up_at
        #: Of the fetch before: when it was, and the leader's log end then.
        self._fetched_at = NEVER
        self._leader_end_offset = 0

    def fetched(self, fetch: FollowerFetch, leader_end_offset: int) -> bool:
        """Take note of a fetch; False if it is of a registration that has been replaced."""
        if fetch.broker_epoch < self.broker_epoch:
            return False
        if self.broker_epoch not in (NO_EPOCH, fetch.broker_epoch):
            self.caught_up_at = self._fetched_at = NEVER
        self.broker_epoch = fetch.broker_epoch
        if fetch.offset >= leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, fetch.now)
        elif fetch.offset >= self._leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, self._fetched_at)
        # It may well go back: a broker that lost its page cache comes back with less.
        self.log_end_offset = fetch.offset
        self.log_start_offset = fetch.log_start_offset
        self._fetched_at = fetch.now
        self._leader_end_offset = leader_end_offset
        return True

    def is_caught_up(self, leader_end_offset: int, now: float, lag_s_max: float) -> bool:
        """Whether it has everything, or had everything recently enough."""
        if self.log_end_offset >= leader_end_offset:
            return True
        return now - self.caught_up_at <= lag_s_max
