"""A consumer group (KIP-848): the broker assigns, and every member gets there by its own steps.

Members send heartbeats. One that joins, leaves, or subscribes anew, and a change of the subscribed
topics, starts a new epoch of the group. The next heartbeat of any member makes a target for that
epoch: who is meant to have what. From then on each member's heartbeats take it there, see
`reconciliation`; there is no moment at which all must stop.

    Empty         no members
    Assigning     the target is of an older epoch than the group
    Reconciling   some member is not yet where the target wants it
    Stable        all are

At any instant a partition is owned by at most one member: it is given out when its last owner says
that it stopped, leaves, or is fenced. Fenced is who is silent for the session timeout, and who does
not give up a partition within its own rebalance timeout; its commits are refused from then on.

Here are the events, and what may not be done; what they change is `consumer_membership`'s, and the
records `consumer_state`'s. Timers: ("session", member id) silence; ("rebalance", member id) giving
up partitions; those of members that speak the classic protocol are in `consumer_classic`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.groups.consumer.consumer_state import ConsumerMember, MemberMetadata
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
from millstream.groups.consumer.membership import (
    REBALANCE,
    SESSION,
    ConsumerGroupSettings,
    ConsumerMembership,
)
from millstream.groups.consumer.reconciliation import MemberState, OwnedPartitions, PartitionEpochs
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE, Caller, GroupKind
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicId
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

__all__ = ["ConsumerGroup", "ConsumerGroupSettings", "ConsumerGroupState"]

#: Commits of members that speak the consumer protocol need this version, which knows epochs.
_EPOCH_COMMIT_SINCE: Final = 9


class ConsumerGroupState(StrEnum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup(ConsumerMembership):
    """See the module's text. Is a `Group`."""

    __slots__ = ()

    # What every group tells about itself

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CONSUMER

    @property
    def protocol_type(self) -> str | None:
        return CONSUMER_PROTOCOL_TYPE

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
        """Whether nothing would be lost with it: nobody ever joined."""
        return self.is_empty and self.state.epoch == 0

    @property
    def is_all_classic(self) -> bool:
        """Whether all that are left speak the classic protocol, so that it should take over."""
        members = self.state.members
        return bool(members) and all(each.classic is not None for each in members.values())

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.state.subscribed

    def offset_idle_since(self, commit_ms: int) -> int | None:
        return commit_ms

    def tombstones(self) -> list[LogRecord]:
        return self.state.tombstones()

    # Heartbeats

    def heartbeat(
        self,
        now_ms: int,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        topics: TopicView,
        reply: Reply[ConsumerGroupHeartbeatResponse],
    ) -> Effects:
        """ConsumerGroupHeartbeat: to join, to leave, or to go on. Answered at once."""
        effects = Effects()
        try:
            check_request(request, caller.version, self.settings.assignors)
            if request.member_epoch < JOIN_EPOCH:
                response = self._leave(now_ms, request, effects)
            else:
                response = self._heartbeat(now_ms, request, caller, topics, effects)
        except BrokerError as error:
            assert not effects.records, "a request is refused before it changes anything"
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
        owned = owned_partitions(request)
        member_id = request.member_id or self.new_member_id()
        known = self._find(request, member_id, owned)
        metadata = updated_metadata(known.metadata if known else MemberMetadata(), request, caller)
        self.check_pattern(metadata, topics)
        before = known.current.assigned if known else {}
        if known is not None and known.classic is not None:
            self._cancel_timers(known.member_id, effects)
        if known is not None and known.member_id != member_id:
            self.replace_member(known, member_id, effects)
        self.update_member(now_ms, member_id, metadata, topics, effects)
        current = self.reconcile_member(now_ms, member_id, owned, topics, effects)
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
        """The member that sends a heartbeat, or whose place it takes; None if it is new."""
        if request.member_epoch != JOIN_EPOCH:
            member = find_member(self.state, member_id, request.instance_id)
            check_epoch(member.current, request.member_epoch, owned)
            return member
        joining = find_joining(self.state, member_id, request.instance_id)
        if joining is None:
            self.check_size()
        return joining

    def _leave(
        self, now_ms: int, request: ConsumerGroupHeartbeatRequest, effects: Effects
    ) -> ConsumerGroupHeartbeatResponse:
        member = find_member(self.state, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_EPOCH:
            self.remove_members([member.member_id], effects)
        else:
            # Its partitions wait for it, for as long as a member may be silent.
            self.state.write_current(effects, member.member_id, member.current.leave_temporarily())
            self._cancel_rebalance(member.member_id, effects)
            due_ms = now_ms + self.settings.session_timeout_ms
            effects.set_timer((SESSION, member.member_id), due_ms)
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    # Time

    def expire(self, now_ms: int, key: TimerKey) -> Effects:
        """A timer fell due; whoever it was for is fenced."""
        effects = Effects()
        what, member_id = key
        member = self.state.members.get(member_id)
        if member is None:
            return effects
        is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
        if what != REBALANCE or is_revoking:
            self.remove_members([member_id], effects)
        return effects

    def loaded(self, now_ms: int) -> Effects:
        effects = Effects()
        for member in self.state.members.values():
            effects.set_timer((SESSION, member.member_id), now_ms + self.session_timeout_ms(member))
            self._watch_rebalance(now_ms, member, effects)
        return effects

    def abandon(self, code: ErrorCode) -> Effects:
        """Nobody ever waits here."""
        return Effects()

    def session_timeout_ms(self, member: ConsumerMember) -> int:
        classic = member.classic
        return self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms

    # Offsets

    def commit(
        self,
        now_ms: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        partitions: Iterable[tuple[TopicId, int]] | None = None,
        *,
        is_transactional: bool = False,
    ) -> Effects:
        """See `Group.commit`. It is no sign of life here: only heartbeats are.

        A member that has moved on meanwhile may still commit, in an older epoch, for partitions
        that it has had ever since (KIP-1251); for this, `partitions` says what is committed.
        """
        if generation < 0 and self.is_empty:
            return Effects()
        if is_transactional and generation < 0 and not member_id and instance_id is None:
            return Effects()
        member = find_member(self.state, member_id, instance_id)
        is_old = version < _EPOCH_COMMIT_SINCE and not is_transactional
        if member.classic is None and is_old:
            raise BrokerError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"members of a consumer group commit with version {_EPOCH_COMMIT_SINCE} or later",
            )
        if not _has_owned_since(member, generation, partitions):
            check_member_epoch(member, generation)
        return Effects()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        check_member_epoch(find_member(self.state, member_id or "", None), member_epoch)


def _has_owned_since(
    member: ConsumerMember, epoch: int, partitions: Iterable[tuple[TopicId, int]] | None
) -> bool:
    """Whether a member had all of these in an epoch before its own, and has them still."""
    if partitions is None or member.classic is not None or not 0 < epoch < member.current.epoch:
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
