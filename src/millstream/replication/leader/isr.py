"""Which replicas are in sync: when one leaves the ISR, when one may join, what is committed. Pure.

Rules, for a leader in its epoch:
    leaves    not caught up for `lag_s_max`; or has told less than the high watermark, which a
              member cannot unless it lost records that were committed
    joins     has everything up to the high watermark and up to where this leader epoch began, is
              caught up, so that it would not leave again at once, is registered under the broker
              epoch that its last fetch carried, and is not about to stop. Below the epoch's start
              its log may still differ from the leader's.
    maximal   the ISR plus what a proposal adds that the store has not confirmed: the store may have
              taken the proposal already and somebody elected from it. What a proposal takes away
              still counts, because the store may not have taken it.
    committed the smallest log end of the maximal ISR
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millstream.metadata.cluster_record import PartitionRecord
from millstream.replication.leader.follower_state import FollowerState


class LeaderView(NamedTuple):
    """What a leader's decisions about its ISR depend on, besides its followers."""

    broker_id: int
    log_end_offset: int
    high_watermark: int
    #: The log's end when this broker became leader of the epoch.
    epoch_start_offset: int
    #: Broker epochs of all brokers that are registered and not about to stop.
    eligible: Mapping[int, int]
    #: Monotonic seconds.
    now: float
    lag_s_max: float
    #: The effective `min.insync.replicas`.
    min_isr: int = 1
    #: Whether the leader's log is offline, so that another replica should lead.
    has_failed: bool = False
    #: The data folders with which brokers are registered.
    directories: Mapping[int, str] = {}


def is_in_sync(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether a member of the ISR may stay."""
    if has_lost_records(follower, leader):
        return False
    return follower.is_caught_up(leader.log_end_offset, leader.now, leader.lag_s_max)


def has_lost_records(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether a member of the ISR has told that it lacks committed records."""
    return 0 <= follower.log_end_offset < leader.high_watermark


def may_join(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether a replica outside of the ISR has earned its place."""
    return (
        follower.log_end_offset >= leader.high_watermark
        and follower.log_end_offset >= leader.epoch_start_offset
        and is_in_sync(follower, leader)
        and is_registered(follower, leader)
    )


def is_registered(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether the follower's last fetch came from the broker that is registered now, to stay."""
    return leader.eligible.get(follower.broker_id) == follower.broker_epoch


def next_isr(
    state: PartitionRecord, followers: Mapping[int, FollowerState], leader: LeaderView
) -> tuple[int, ...]:
    """The ISR as it should be; equal to the present one where nothing is to be changed."""
    kept = [
        member
        for member in state.isr
        if member == leader.broker_id
        or (member in followers and is_in_sync(followers[member], leader))
    ]
    joining = [
        replica
        for replica in state.replicas
        if replica not in state.isr
        and replica in followers
        and may_join(followers[replica], leader)
    ]
    return (*kept, *joining)


def maximal_isr(state: PartitionRecord, proposed: Iterable[int]) -> frozenset[int]:
    return frozenset(state.isr).union(proposed)


def committed_offset(own_offset: int, counted: Iterable[FollowerState]) -> int:
    """The smallest offset that the leader and all of `counted` have reached."""
    for follower in counted:
        own_offset = min(own_offset, follower.log_end_offset)
    return own_offset
