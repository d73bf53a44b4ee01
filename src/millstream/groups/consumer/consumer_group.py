"""A consumer group (KIP-848): the broker assigns, and each member reconciles on its own.

Members send heartbeats. A new epoch of the group starts when a member joins, leaves or changes its
subscription, and when a subscribed topic changes. The next heartbeat of any member computes the
target assignment of that epoch. From then on each member's heartbeats lead it to its target (see
`reconciliation`); the group never stops as a whole.

    Empty         no members
    Assigning     the target assignment is of an older epoch than the group
    Reconciling   some member has not reached its target
    Stable        all members have reached their targets

At any time a partition has at most one owner. It is assigned to the next member when its owner
reports that it has stopped, leaves, or is fenced. A member is fenced when it is silent for the
session timeout, or does not revoke a partition within its rebalance timeout. Its commits are
rejected from then on.

A group has a `membership`, which changes members and writes records, and a `classic_protocol` for
members that speak the classic protocol. This module handles the events and rejects bad requests.

Timers: ("session", member id) a member's silence; ("rebalance", member id) revoking partitions;
`classic_protocol` describes the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.env.random import Random
from millstream.groups.consumer.classic_protocol import ClassicProtocol
from millstream.groups.consumer.consumer_settings import ConsumerGroupSettings
from millstream.groups.consumer.consumer_state import ConsumerMember, ConsumerState, MemberMetadata
from millstream.groups.consumer.heartbeat_request import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    check_epoch,
    check_member_epoch,
    check_request,
    find_joining,
    find_member,
    is_full,
    owned_partitions,
    updated_metadata,
)
from millstream.groups.consumer.membership import REBALANCE, SESSION, ConsumerMembership
from millstream.groups.consumer.reconciliation import MemberState, OwnedPartitions, PartitionEpochs
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE, Caller, GroupKind
from millstream.groups.group_settings import GroupSettings
from millstream.groups.offset_commit import OffsetCommit
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicId
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

#: Commits of members that speak the consumer protocol need this version, which knows epochs.
_EPOCH_COMMIT_SINCE: Final = 9


class ConsumerGroupState(StrEnum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """One consumer group. Implements `Group`."""

    __slots__ = ("_classic_protocol", "_membership", "group_id")

    def __init__(self, group_id: str, settings: ConsumerGroupSettings, random: Random) -> None:
        self.group_id = group_id
        self._membership = ConsumerMembership(group_id, settings, random)
        self._classic_protocol = ClassicProtocol(self._membership)

    # State

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CONSUMER

    @property
    def protocol_type(self) -> str | None:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state(self) -> ConsumerState:
        """The state that the group's records store."""
        return self._membership.state

    @property
    def settings(self) -> ConsumerGroupSettings:
        return self._membership.settings

    @property
    def assignor_name(self) -> str:
        return self._membership.assignor_name

    @property
    def member_ids(self) -> list[str]:
        return list(self.state.members)

    @property
    def state_name(self) -> str:
        return self.group_state.value

    @property
    def group_state(self) -> ConsumerGroupState:
        state = self.state
        if not state.members:
            return ConsumerGroupState.EMPTY
        if state.epoch > state.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(each.current.is_reconciled(state.target_epoch) for each in state.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def is_blank(self) -> bool:
        return self.is_empty and self.state.epoch == 0

    @property
    def has_pending_members(self) -> bool:
        """The group does not store member ids that it assigns."""
        return False

    @property
    def is_joinable(self) -> bool:
        """A member of the classic protocol joins if others are there; a classic group replaces an
        empty one."""
        return not self.is_empty

    @property
    def is_all_classic(self) -> bool:
        """Whether all members speak the classic protocol, so that the group should change to
        it."""
        members = self.state.members
        return bool(members) and all(each.classic is not None for each in members.values())

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.state.subscribed

    def offset_idle_since(self, commit_ms: int) -> int | None:
        return commit_ms

    # The classic protocol

    def join(
        self,
        now_ms: int,
        request: JoinGroupRequest,
        caller: Caller,
        topics: TopicView,
        reply: Reply[JoinGroupResponse],
    ) -> Effects:
        return self._classic_protocol.join(now_ms, request, caller, topics, reply)

    def sync(
        self,
        now_ms: int,
        request: SyncGroupRequest,
        topics: TopicView,
        reply: Reply[SyncGroupResponse],
    ) -> Effects:
        return self._classic_protocol.sync(now_ms, request, topics, reply)

    def heartbeat(
        self,
        now_ms: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        effects: Effects,
    ) -> ErrorCode:
        return self._classic_protocol.heartbeat(now_ms, member_id, instance_id, generation, effects)

    def leave(
        self,
        now_ms: int,
        members: Sequence[LeaveGroupRequest.Member],
        reply: Reply[LeaveGroupResponse],
    ) -> Effects:
        return self._classic_protocol.leave(members, reply)

    # The consumer protocol

    def consumer_heartbeat(
        self,
        now_ms: int,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        topics: TopicView,
        reply: Reply[ConsumerGroupHeartbeatResponse],
    ) -> Effects:
        """Handle ConsumerGroupHeartbeat: a member joins, leaves or stays. The response is
        immediate."""
        effects = Effects()
        try:
            check_request(request, caller.version, self.settings.assignors)
            if request.member_epoch < JOIN_EPOCH:
                response = self._leave(now_ms, request, effects)
            else:
                response = self._heartbeat(now_ms, request, caller, topics, effects)
        except BrokerError as error:
            assert not effects.records, "a request is rejected before it changes anything"
            response = ConsumerGroupHeartbeatResponse(
                error_code=error.code, error_message=error.message
            )
        effects.deliver(reply, response)
        return effects

    def _heartbeat(
        self,
        now_ms: int,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        topics: TopicView,
        effects: Effects,
    ) -> ConsumerGroupHeartbeatResponse:
        membership = self._membership
        owned = owned_partitions(request)
        member_id = request.member_id or membership.new_member_id()
        known = self._find(request, member_id, owned)
        metadata = updated_metadata(known.metadata if known else MemberMetadata(), request, caller)
        membership.check_pattern(metadata, topics)
        before = known.current.assigned if known else {}
        if known is not None and known.classic is not None:
            membership.cancel_timers(known.member_id, effects)
        if known is not None and known.member_id != member_id:
            membership.replace_member(known, member_id, effects)
        membership.update_member(now_ms, member_id, metadata, topics, effects)
        current = membership.reconcile_member(now_ms, member_id, owned, topics, effects)
        effects.set_timer((SESSION, member_id), now_ms + self.settings.session_timeout_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
        )
        if is_full(request) or _differs(before, current.assigned):
            response.assignment = _assignment(current.assigned)
        return response

    def _find(
        self, request: ConsumerGroupHeartbeatRequest, member_id: str, owned: OwnedPartitions | None
    ) -> ConsumerMember | None:
        """Return the member that sends the heartbeat or is replaced by it; None for a new one."""
        if request.member_epoch != JOIN_EPOCH:
            member = find_member(self.state, member_id, request.instance_id)
            check_epoch(member.current, request.member_epoch, owned)
            return member
        joining = find_joining(self.state, member_id, request.instance_id)
        if joining is None:
            self._membership.check_size()
        return joining

    def _leave(
        self, now_ms: int, request: ConsumerGroupHeartbeatRequest, effects: Effects
    ) -> ConsumerGroupHeartbeatResponse:
        member = find_member(self.state, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_EPOCH:
            self._membership.remove_members([member.member_id], effects)
        else:
            # The static member keeps its partitions until its session expires.
            self.state.write_current(effects, member.member_id, member.current.leave_temporarily())
            effects.cancel_timer((REBALANCE, member.member_id))
            due_ms = now_ms + self.settings.session_timeout_ms
            effects.set_timer((SESSION, member.member_id), due_ms)
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    # Time

    def expire(self, now_ms: int, key: TimerKey) -> Effects:
        """Fence the member whose timer expired."""
        effects = Effects()
        what, member_id = key
        member = self.state.members.get(member_id)
        if member is None:
            return effects
        is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
        if what != REBALANCE or is_revoking:
            self._membership.remove_members([member_id], effects)
        return effects

    def loaded(self, now_ms: int) -> Effects:
        effects = Effects()
        for member in self.state.members.values():
            effects.set_timer((SESSION, member.member_id), now_ms + self.session_timeout_ms(member))
            self._membership.set_rebalance_timer(now_ms, member, effects)
        return effects

    def configure(self, settings: GroupSettings) -> None:
        """Use the group's new settings. Timers that run keep their length."""
        self._membership.settings = settings.consumer_of(self.group_id)

    def tombstones(self) -> list[LogRecord]:
        return self.state.tombstones()

    def delete(self) -> None:
        """No request waits in a consumer group, so nothing refers to a deleted one."""

    def fail_waiting(self, code: ErrorCode) -> Effects:
        """No request ever waits in a consumer group."""
        return Effects()

    def session_timeout_ms(self, member: ConsumerMember) -> int:
        classic = member.classic
        return self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms

    # Offsets

    def commit(self, now_ms: int, commit: OffsetCommit) -> Effects:
        """Check a commit. A commit does not renew the session: only heartbeats do.

        A member may commit in an older epoch for partitions that it has owned ever since
        (KIP-1251)."""
        if commit.generation < 0 and self.is_empty:
            return Effects()
        if commit.is_transactional and commit.is_anonymous:
            return Effects()
        member = find_member(self.state, commit.member_id, commit.instance_id)
        is_old = commit.version < _EPOCH_COMMIT_SINCE and not commit.is_transactional
        if member.classic is None and is_old:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"members of a consumer group commit with version {_EPOCH_COMMIT_SINCE} or later",
            )
        if not _has_owned_since(member, commit.generation, commit.partitions):
            check_member_epoch(member, commit.generation)
        return Effects()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        check_member_epoch(find_member(self.state, member_id or "", None), member_epoch)


def _has_owned_since(
    member: ConsumerMember, epoch: int, partitions: Iterable[tuple[TopicId, int]]
) -> bool:
    """Whether the member owned all partitions in an older epoch, and still owns them."""
    if member.classic is not None or not 0 < epoch < member.current.epoch:
        return False
    since = [member.current.assignment_epoch(*partition) for partition in partitions]
    return all(each is not None and each <= epoch for each in since)


def _differs(before: PartitionEpochs, after: PartitionEpochs) -> bool:
    return before.keys() != after.keys() or any(
        before[topic_id].keys() != after[topic_id].keys() for topic_id in after
    )


def _assignment(partition_epochs: PartitionEpochs) -> ConsumerGroupHeartbeatResponse.Assignment:
    shape = ConsumerGroupHeartbeatResponse.Assignment
    rows = [
        shape.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in partition_epochs.items()
    ]
    return shape(topic_partitions=rows)
