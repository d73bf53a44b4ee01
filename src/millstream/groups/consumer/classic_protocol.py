"""Members of the classic protocol in a consumer group, during a migration to the new protocol.

To such a member the group looks like a classic group that another member leads. The member's
generation is its member epoch. JoinGroup performs one step of its reconciliation: the member
reports the partitions that it owns, and gets a response at once. SyncGroup returns its current
assignment. When another step is due, Heartbeat returns REBALANCE_IN_PROGRESS until the member joins
again. That is so when a newer epoch is reachable, when the member must revoke partitions, and when
partitions that it waits for were released.

Timers: ("session", member id) with the member's own session timeout; ("join", member id) starts
with the first response that asks the member to rejoin; ("sync", member id) starts with the response
to JoinGroup. The last two run for the member's rebalance timeout and remove the member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from millstream.coordination.effects import Effects
from millstream.groups.classic.generation import join_error, sync_error
from millstream.groups.consumer.consumer_state import ConsumerMember, ConsumerState, MemberMetadata
from millstream.groups.consumer.heartbeat_request import check_member_epoch, check_size, find_member
from millstream.groups.consumer.membership import JOIN, SESSION, SYNC, ConsumerMembership
from millstream.groups.consumer.reconciliation import MemberState, OwnedPartitions, PartitionEpochs
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE, Caller
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicId
from millstream.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import decode_prefixed, encode_prefixed, read_version

#: From this version on a dynamic member gets its id before it is added (KIP-394).
_MEMBER_ID_REQUIRED_SINCE: Final = 4
_CLIENT_ID_CHARACTERS_MAX: Final = 255


class ClassicProtocol:
    """Serves the members of one consumer group that speak the classic protocol."""

    __slots__ = ("_membership",)

    def __init__(self, membership: ConsumerMembership) -> None:
        self._membership = membership

    # JoinGroup

    def join(
        self,
        now_ms: int,
        request: JoinGroupRequest,
        caller: Caller,
        topics: TopicView,
        reply: Reply[JoinGroupResponse],
    ) -> Effects:
        """Handle JoinGroup. The response is immediate: no member waits for others."""
        effects = Effects()
        try:
            response = self._join(now_ms, request, caller, topics, effects)
        except BrokerError as error:
            assert not effects.records, "a request is rejected before it changes anything"
            response = join_error(error.code, request.member_id)
        effects.deliver(reply, response)
        return effects

    def _join(
        self,
        now_ms: int,
        request: JoinGroupRequest,
        caller: Caller,
        topics: TopicView,
        effects: Effects,
    ) -> JoinGroupResponse:
        membership, state = self._membership, self._membership.state
        sent = [each.metadata for each in request.protocols]
        check_size(request.member_id, request.group_instance_id or "", *sent)
        subscription = _check_protocols(state, request)
        known = _find_joining(state, request)
        if known is None:
            _check_new_member(subscription)
            membership.check_size()
        client_id = caller.client_id[:_CLIENT_ID_CHARACTERS_MAX]
        member_id = request.member_id or membership.new_member_id(client_id)
        is_dynamic = request.group_instance_id is None
        if not request.member_id and is_dynamic and caller.version >= _MEMBER_ID_REQUIRED_SINCE:
            return join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        before = known.metadata if known else MemberMetadata()
        metadata = _updated_metadata(before, request, subscription, caller)
        if known is not None and known.member_id != member_id:
            membership.replace_member(known, member_id, effects)
        membership.update_member(now_ms, member_id, metadata, topics, effects)
        owned = owned_by_name(subscription.owned_partitions, topics)
        current = membership.reconcile_member(now_ms, member_id, owned, topics, effects)
        membership.awaiting_rejoin.discard(member_id)
        effects.cancel_timer((JOIN, member_id))
        effects.set_timer((SESSION, member_id), now_ms + request.session_timeout_ms)
        effects.set_timer((SYNC, member_id), now_ms + metadata.rebalance_timeout_ms)
        return JoinGroupResponse(
            member_id=member_id,
            generation_id=current.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
        )

    # SyncGroup

    def sync(
        self,
        now_ms: int,
        request: SyncGroupRequest,
        topics: TopicView,
        reply: Reply[SyncGroupResponse],
    ) -> Effects:
        """Handle SyncGroup: the response holds the member's current assignment."""
        effects = Effects()
        try:
            response = self._sync(now_ms, request, topics, effects)
        except BrokerError as error:
            response = sync_error(error.code)
        effects.deliver(reply, response)
        return effects

    def _sync(
        self, now_ms: int, request: SyncGroupRequest, topics: TopicView, effects: Effects
    ) -> SyncGroupResponse:
        membership = self._membership
        member, classic = _find(membership.state, request.member_id, request.group_instance_id)
        check_member_epoch(member, request.generation_id)
        has_type = request.protocol_type in (None, CONSUMER_PROTOCOL_TYPE)
        has_name = request.protocol_name in (None, classic.supported_protocols[0].name)
        if not has_type or not has_name:
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
        if membership.reachable_epoch(now_ms) > member.current.epoch and not is_revoking:
            # A member that revokes partitions has joined already. Its next heartbeat tells it to
            # join again.
            self._await_rejoin(now_ms, member, effects)
            raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
        effects.cancel_timer((SYNC, member.member_id))
        effects.set_timer((SESSION, member.member_id), now_ms + classic.session_timeout_ms)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encoded_assignment(member.current.assigned, classic, topics),
        )

    # Heartbeat and LeaveGroup

    def heartbeat(
        self,
        now_ms: int,
        member_id: str,
        instance_id: str | None,
        generation: int,
        effects: Effects,
    ) -> ErrorCode:
        """Handle Heartbeat; return the error code of the response, which depends on no record."""
        try:
            member, classic = _find(self._membership.state, member_id, instance_id)
            check_member_epoch(member, generation)
        except BrokerError as error:
            return error.code
        effects.set_timer((SESSION, member_id), now_ms + classic.session_timeout_ms)
        if not self._must_rejoin(now_ms, member):
            return ErrorCode.NONE
        self._await_rejoin(now_ms, member, effects)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(
        self, members: Sequence[LeaveGroupRequest.Member], reply: Reply[LeaveGroupResponse]
    ) -> Effects:
        """Handle LeaveGroup. A static member may be named by its instance id alone."""
        effects = Effects()
        state = self._membership.state
        response = LeaveGroupResponse()
        leaving: dict[str, None] = {}
        for each in members:
            row = LeaveGroupResponse.Member(
                member_id=each.member_id, group_instance_id=each.group_instance_id
            )
            response.members.append(row)
            try:
                member_id = each.member_id or state.static.get(each.group_instance_id or "", "")
                member, _ = _find(state, member_id, each.group_instance_id)
                leaving[member.member_id] = None
            except BrokerError as error:
                row.error_code = error.code
        if leaving:
            self._membership.remove_members(leaving, effects)
        effects.deliver(reply, response)
        return effects

    def _must_rejoin(self, now_ms: int, member: ConsumerMember) -> bool:
        state = self._membership.state
        if self._membership.reachable_epoch(now_ms) > member.current.epoch:
            return True
        match member.current.state:
            case MemberState.UNREVOKED_PARTITIONS:
                return True
            case MemberState.UNRELEASED_PARTITIONS:
                target = state.targets.get(member.member_id, {})
                return all(
                    state.owner(topic_id, partition) in (None, member.member_id)
                    for topic_id, partitions in target.items()
                    for partition in partitions
                )
            case _:
                return False

    def _await_rejoin(self, now_ms: int, member: ConsumerMember, effects: Effects) -> None:
        """Start the join timer when a response first asks the member to rejoin."""
        awaiting = self._membership.awaiting_rejoin
        if member.member_id not in awaiting:
            awaiting.add(member.member_id)
            due_ms = now_ms + member.metadata.rebalance_timeout_ms
            effects.set_timer((JOIN, member.member_id), due_ms)


def _check_protocols(
    state: ConsumerState, request: JoinGroupRequest
) -> ConsumerProtocolSubscription:
    """Return the member's subscription; raise INCONSISTENT_GROUP_PROTOCOL if it is no consumer.

    The member must share a protocol with all other classic members, because the group may become
    a classic group of these members."""
    support = Counter(
        each.name
        for member in state.members.values()
        if member.classic is not None
        for each in member.classic.supported_protocols
    )
    count = sum(member.classic is not None for member in state.members.values())
    names = {each.name for each in request.protocols}
    if request.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
        support[name] == count for name in names
    ):
        try:
            return decode_prefixed(ConsumerProtocolSubscription, request.protocols[0].metadata)
        except DecodeError:
            pass
    raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _find_joining(state: ConsumerState, request: JoinGroupRequest) -> ConsumerMember | None:
    """Return the member that joins again, or the static member that it replaces."""
    if request.group_instance_id is None:
        return state.members.get(request.member_id)
    if not request.member_id:
        return state.static_member(request.group_instance_id)
    return find_member(state, request.member_id, request.group_instance_id)


def _check_new_member(subscription: ConsumerProtocolSubscription) -> None:
    """Raise UNKNOWN_MEMBER_ID if an unknown member owns partitions.

    The group does not store the ids that it assigns. So a member that was removed and does not
    know it looks new, except that it owns partitions. Those may have another owner by now."""
    if any(row.partitions for row in subscription.owned_partitions):
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)


def _updated_metadata(
    metadata: MemberMetadata,
    request: JoinGroupRequest,
    subscription: ConsumerProtocolSubscription,
    caller: Caller,
) -> MemberMetadata:
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        metadata,
        instance_id=request.group_instance_id,
        rack_id=subscription.rack_id or metadata.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        subscribed_topic_names=sorted(set(subscription.topics)),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else request.session_timeout_ms,
        server_assignor=None,
        classic_member_metadata=MemberMetadata.Classic(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=[
                MemberMetadata.Classic.Protocol(name=each.name, metadata=each.metadata)
                for each in request.protocols
            ],
        ),
    )


def _find(
    state: ConsumerState, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, MemberMetadata.Classic]:
    """Return the member, which must speak the classic protocol; raise BrokerError otherwise."""
    member = find_member(state, member_id, instance_id)
    if member.classic is None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member, member.classic


# Between topic names and topic ids


def owned_by_name(
    rows: Sequence[
        ConsumerProtocolSubscription.TopicPartitions | ConsumerProtocolAssignment.TopicPartitions
    ],
    topics: TopicView,
) -> OwnedPartitions:
    """Return the partitions that a client lists by topic name; unknown topics are left out."""
    owned: dict[TopicId, set[int]] = {}
    for row in rows:
        topic = topics.topic(row.topic)
        if topic is not None:
            owned.setdefault(topic.topic_id, set()).update(row.partitions)
    return owned


def encoded_assignment(
    partition_epochs: PartitionEpochs, classic: MemberMetadata.Classic, topics: TopicView
) -> bytes:
    """Encode an assignment in the version of the consumer protocol that the member speaks."""
    shape = ConsumerProtocolAssignment
    rows = [
        shape.TopicPartitions(topic=name, partitions=sorted(partitions))
        for topic_id, partitions in partition_epochs.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    version = read_version(ConsumerProtocolSubscription, classic.supported_protocols[0].metadata)
    return encode_prefixed(shape(assigned_partitions=rows), version)
