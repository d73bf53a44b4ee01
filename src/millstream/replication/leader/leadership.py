"""A leader's state for one partition in one epoch: its followers, and the ISR that it proposes.

Pure. From fetches, new metadata and the time it derives what is committed and which ISR change to
propose. `Partition` owns a `Leadership` while it leads more than one replica. `isr_change` brings
its proposals to the store.

There is at most one proposal. It exists from `propose` until the metadata show a newer partition
epoch, whatever error an attempt ended with, because the store may have stored it. `withdraw` drops
a proposal that the store is certain never to store.

A replica that has caught up but is not in the ISR yet holds the high watermark back as a member
does. Otherwise it would chase a high watermark that moves with every append, and never join.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.metadata import replica_set
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.min_isr import is_enough
from millstream.replication.leader import isr
from millstream.replication.leader.follower_state import NEVER, FollowerFetch, FollowerState
from millstream.replication.leader.isr import LeaderView


class IsrProposal(NamedTuple):
    """A proposed change of the ISR."""

    #: The record to store, with the partition epoch of the present record.
    record: PartitionRecord
    #: Replicas that join, with the broker epoch of their fetches.
    joining: dict[int, int]


class Leadership:
    """One leader epoch of a partition with several replicas."""

    __slots__ = (
        "_counted",
        "_held",
        "_state",
        "broker_id",
        "epoch_start_offset",
        "followers",
        "proposal",
    )

    def __init__(
        self, broker_id: int, state: PartitionRecord, epoch_start_offset: int, now: float
    ) -> None:
        self.broker_id = broker_id
        #: Log end at the start of this epoch.
        self.epoch_start_offset = epoch_start_offset
        self._state = state
        #: Every other replica.
        self.followers: dict[int, FollowerState] = {}
        #: The proposed change of the present record.
        self.proposal: IsrProposal | None = None
        #: Replicas outside the maximal ISR that hold the high watermark back.
        self._held: set[int] = set()
        #: The followers that the high watermark waits for: the maximal ISR, and `_held`.
        self._counted: tuple[FollowerState, ...] = ()
        self._apply(state, now)

    def update(self, state: PartitionRecord, now: float) -> None:
        """Apply a changed partition record with the same leader and leader epoch."""
        if state.partition_epoch > self._state.partition_epoch:
            self.proposal = None
        self._apply(state, now)

    def _apply(self, state: PartitionRecord, now: float) -> None:
        self._state = state
        others = [replica for replica in state.replicas if replica != self.broker_id]
        for replica in others:
            if replica not in self.followers:
                caught_up_at = now if replica in state.isr else NEVER
                self.followers[replica] = FollowerState(replica, caught_up_at)
        for replica in set(self.followers).difference(others):
            del self.followers[replica]
        self._held.intersection_update(others)
        self._count()

    def _count(self) -> None:
        joining = self.proposal.joining if self.proposal is not None else ()
        maximal = isr.maximal_isr(self._state, joining)
        self._held.difference_update(maximal)
        self._counted = tuple(
            follower
            for replica, follower in self.followers.items()
            if replica in maximal or replica in self._held
        )

    def committed_offset(self, own_offset: int) -> int:
        """Return the smallest log end of the counted replicas; -1 before each has fetched."""
        return isr.committed_offset(own_offset, self._counted)

    def low_watermark(self, own_offset: int) -> int:
        """Return the smallest log start of the in-sync replicas; -1 before each has fetched."""
        for replica in self._state.isr:
            follower = self.followers.get(replica)
            if follower is not None:
                own_offset = min(own_offset, follower.log_start_offset)
        return own_offset

    def fetched(self, fetch: FollowerFetch, leader: LeaderView) -> bool:
        """Record a follower's fetch; return whether it counts."""
        follower = self.followers.get(fetch.broker_id)
        if follower is None or not follower.fetched(fetch, leader.log_end_offset):
            return False
        self._hold(follower, leader)
        return True

    def _hold(self, follower: FollowerState, leader: LeaderView) -> None:
        """Start or stop to hold the high watermark back for a replica outside the ISR."""
        replica = follower.broker_id
        if follower in self._counted and replica not in self._held:
            return
        is_near = isr.is_registered(follower, leader) and follower.is_caught_up(
            leader.log_end_offset, leader.now, leader.lag_s_max
        )
        if is_near != (replica in self._held):
            self._held ^= {replica}
            self._count()

    def review(self, leader: LeaderView) -> None:
        """Release the high watermark from replicas outside the ISR that fell behind."""
        for replica in list(self._held):
            self._hold(self.followers[replica], leader)

    def wants_change(self, leader: LeaderView) -> bool:
        """Whether there is a change to propose, or a proposal whose outcome is unknown."""
        if self.proposal is not None:
            return True
        state = self._state
        if leader.has_failed and self._resignation(leader) is not None:
            return True
        if (state.elr or state.last_known_elr) and is_enough(state.isr, leader.min_isr):
            return True
        return isr.next_isr(state, self.followers, leader) != state.isr

    def propose(self, leader: LeaderView) -> IsrProposal | None:
        """Return the record to store, or None; the same proposal until its outcome is known."""
        if self.proposal is None and leader.has_failed:
            resigned = self._resignation(leader)
            if resigned is not None:
                self.proposal = IsrProposal(resigned, {})
        if self.proposal is None:
            wanted = isr.next_isr(self._state, self.followers, leader)
            joining = {
                replica: self.followers[replica].broker_epoch
                for replica in wanted
                if replica not in self._state.isr
            }
            record = self._record_with(wanted, joining, leader)
            if record == self._state:
                return None
            self.proposal = IsrProposal(record, joining)
            self._count()
        return self.proposal

    def _resignation(self, leader: LeaderView) -> PartitionRecord | None:
        return replica_set.resign(self._state, leader.min_isr, leader.eligible, leader.directories)

    def _record_with(
        self, wanted: tuple[int, ...], joining: Iterable[int], leader: LeaderView
    ) -> PartitionRecord:
        """Return the record with this ISR.

        A replica joins with its present directory id. A member whose log end is below the high
        watermark has lost records."""
        lost = [
            replica
            for replica in self._state.isr
            if replica in self.followers and isr.has_lost_records(self.followers[replica], leader)
        ]
        record = replica_set.with_isr(self._state, wanted, leader.min_isr, lost)
        for replica in joining:
            record = replica_set.with_directory(
                record, replica, leader.directories.get(replica, "")
            )
        return record

    def withdraw(self, proposal: IsrProposal) -> None:
        """Drop a proposal that the store will never store: a joining replica is gone."""
        if self.proposal is proposal:
            self.proposal = None
            self._count()
