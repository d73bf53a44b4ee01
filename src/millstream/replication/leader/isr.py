"""Which replicas are in sync: when a replica leaves or joins the ISR, and what is committed. Pure.

Rules, for a leader in its epoch:
    leaves    a member that was not caught up for `lag_s_max`, or whose log end is below the high
              watermark: it has lost committed records
    joins     a replica that has every record up to the high watermark and up to the start of this
              leader epoch, is caught up, is registered under the broker epoch of its last fetch,
              and is not shutting down. Below the start of the epoch its log may still diverge.
    maximal   the ISR plus the members that an unconfirmed proposal adds: the store may already have
              stored it, and a leader may be elected from it. Members that a proposal removes still
              count, because the store may have rejected it.
    committed the smallest log end of the maximal ISR
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from millstream.metadata.cluster_record import PartitionRecord
from millstream.replication.leader.follower_state import FollowerState


class LeaderView(NamedTuple):
    """The inputs of a leader's decisions about its ISR, besides its followers."""

    broker_id: int
    log_end_offset: int
    high_watermark: int
    #: Log end when this broker became the leader in this epoch.
    epoch_start_offset: int
    #: Broker epochs of all brokers that are registered and not shutting down.
    eligible: Mapping[int, int]
    #: Monotonic seconds.
    now: float
    lag_s_max: float
    #: The effective `min.insync.replicas`.
    min_isr: int = 1
    #: Whether the leader's log is offline, so that another replica should lead.
    has_failed: bool = False
    #: The directory ids with which brokers are registered.
    directories: Mapping[int, str] = {}


def is_in_sync(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether a member may stay in the ISR."""
    if has_lost_records(follower, leader):
        return False
    return follower.is_caught_up(leader.log_end_offset, leader.now, leader.lag_s_max)


def has_lost_records(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether a member of the ISR lacks committed records, by its last fetch."""
    return 0 <= follower.log_end_offset < leader.high_watermark


def may_join(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether a replica outside the ISR may join it."""
    return (
        follower.log_end_offset >= leader.high_watermark
        and follower.log_end_offset >= leader.epoch_start_offset
        and is_in_sync(follower, leader)
        and is_registered(follower, leader)
    )


def is_registered(follower: FollowerState, leader: LeaderView) -> bool:
    """Whether the follower's last fetch carried its present registration, and it is not shutting
    down."""
    return leader.eligible.get(follower.broker_id) == follower.broker_epoch


def next_isr(
    state: PartitionRecord, followers: Mapping[int, FollowerState], leader: LeaderView
) -> tuple[int, ...]:
    """Return the ISR that the rules give; equal to the present one if nothing changes."""
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
    """Return the smallest offset that the leader and all followers in `counted` have."""
    for follower in counted:
        own_offset = min(own_offset, follower.log_end_offset)
    return own_offset
