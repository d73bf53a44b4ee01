"""Members of the classic protocol in a consumer group, while the group moves to the new protocol.

To such a member the group looks like a classic one in which somebody else leads. Its generation is
its member epoch. JoinGroup is where it takes a step of its reconciliation: it says what it owns,
and is answered at once. SyncGroup tells it what it has. When there is another step to take, its
heartbeats are answered with REBALANCE_IN_PROGRESS until it joins again: when a newer epoch is in
reach, when it must give up partitions, and when partitions that it waits for have become free.

Timers: ("session", member id) as ever, but of the length that the member asks for; ("join", member
id) from being told to join again; ("sync", member id) from a JoinGroup's answer. The last two run
for the member's rebalance timeout, and end its membership.

All functions have the signatures of `ClassicGroup`'s methods, with the group, and with the topics
where they are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from millstream.coordination.effects import Effects
from millstream.groups.classic.join import join_failed
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.consumer_state import ConsumerMember, ConsumerState, MemberMetadata
from millstream.groups.consumer.heartbeat_request import check_member_epoch, check_size, find_member
from millstream.groups.consumer.membership import JOIN, SESSION, SYNC
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

#: From this version on a dynamic member is told its id before it is let in (KIP-394).
_MEMBER_ID_REQUIRED_SINCE: Final = 4
_CLIENT_ID_CHARACTERS_MAX: Final = 255


# Joining


def join_consumer_group(
    group: ConsumerGroup,
    now_ms: int,
    request: JoinGroupRequest,
    caller: Caller,
    topics: TopicView,
    reply: Reply[JoinGroupResponse],
) -> Effects:
    """JoinGroup. Answered at once: nobody waits for others here."""
    effects = Effects()
    try:
        response = _join(group, now_ms, request, caller, topics, effects)
    except BrokerError as error:
        assert not effects.records, "a request is refused before it changes anything"
        response = join_failed(error.code, request.member_id)
    effects.deliver(reply, response)
    return effects


def _join(
    group: ConsumerGroup,
    now_ms: int,
    request: JoinGroupRequest,
    caller: Caller,
    topics: TopicView,
    effects: Effects,
) -> JoinGroupResponse:
    said = [each.metadata for each in request.protocols]
    check_size(request.member_id, request.group_instance_id or "", *said)
    subscription = _check_protocols(group.state, request)
    known = _find_joining(group.state, request)
    if known is None:
        _check_newcomer(subscription)
        group.check_size()
    member_id = request.member_id or group.new_member_id(
        caller.client_id[:_CLIENT_ID_CHARACTERS_MAX]
    )
    is_dynamic = request.group_instance_id is None
    if not request.member_id and is_dynamic and caller.version >= _MEMBER_ID_REQUIRED_SINCE:
        return join_failed(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    metadata = _metadata(
        known.metadata if known else MemberMetadata(), request, subscription, caller
    )
    if known is not None and known.member_id != member_id:
        group.replace_member(known, member_id, effects)
    group.update_member(now_ms, member_id, metadata, topics, effects)
    owned = owned_by_name(subscription.owned_partitions, topics)
    current = group.reconcile_member(now_ms, member_id, owned, topics, effects)
    group.awaiting_rejoin.discard(member_id)
    effects.cancel_timer((JOIN, member_id))
    effects.set_timer((SESSION, member_id), now_ms + request.session_timeout_ms)
    effects.set_timer((SYNC, member_id), now_ms + metadata.rebalance_timeout_ms)
    return JoinGroupResponse(
        member_id=member_id,
        generation_id=current.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
    )


def _check_protocols(
    state: ConsumerState, request: JoinGroupRequest
) -> ConsumerProtocolSubscription:
    """What the member subscribes to. INCONSISTENT_GROUP_PROTOCOL unless it is a consumer, and has
    a protocol in common with all others that speak the classic one: they may be left alone."""
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
    """The member that joins again, or the static one whose place it takes."""
    if request.group_instance_id is None:
        return state.members.get(request.member_id)
    if not request.member_id:
        return state.static_member(request.group_instance_id)
    return find_member(state, request.member_id, request.group_instance_id)


def _check_newcomer(subscription: ConsumerProtocolSubscription) -> None:
    """UNKNOWN_MEMBER_ID unless a member that is new here owns nothing.

    Ids of newcomers are not kept, so one whose membership ended, and who does not know, looks new
    but for this. If it were let in, it would go on with partitions that may have another owner.
    """
    if any(row.partitions for row in subscription.owned_partitions):
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)


def _metadata(
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


# Syncing


def sync_consumer_group(
    group: ConsumerGroup,
    now_ms: int,
    request: SyncGroupRequest,
    topics: TopicView,
    reply: Reply[SyncGroupResponse],
) -> Effects:
    """SyncGroup: what the member has now."""
    effects = Effects()
    try:
        response = _sync(group, now_ms, request, topics, effects)
    except BrokerError as error:
        response = SyncGroupResponse(error_code=error.code)
    effects.deliver(reply, response)
    return effects


def _sync(
    group: ConsumerGroup,
    now_ms: int,
    request: SyncGroupRequest,
    topics: TopicView,
    effects: Effects,
) -> SyncGroupResponse:
    member, classic = _find(group.state, request.member_id, request.group_instance_id)
    check_member_epoch(member, request.generation_id)
    name = classic.supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        name,
    ):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
    if group.reachable_epoch(now_ms) > member.current.epoch and not is_revoking:
        # One that gives up partitions has joined already, and hears of the rest when it is done.
        _await_rejoin(group, now_ms, member, effects)
        raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
    effects.cancel_timer((SYNC, member.member_id))
    effects.set_timer((SESSION, member.member_id), now_ms + classic.session_timeout_ms)
    return SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=encoded_assignment(member.current.assigned, classic, topics),
    )


# Living and leaving


def heartbeat_consumer_group(
    group: ConsumerGroup,
    now_ms: int,
    member_id: str,
    instance_id: str | None,
    generation: int,
    effects: Effects,
) -> ErrorCode:
    """Heartbeat: returns its answer, which needs no record."""
    try:
        member, classic = _find(group.state, member_id, instance_id)
        check_member_epoch(member, generation)
    except BrokerError as error:
        return error.code
    effects.set_timer((SESSION, member_id), now_ms + classic.session_timeout_ms)
    if not _should_rejoin(group, now_ms, member):
        return ErrorCode.NONE
    _await_rejoin(group, now_ms, member, effects)
    return ErrorCode.REBALANCE_IN_PROGRESS


def leave_consumer_group(
    group: ConsumerGroup,
    members: Sequence[LeaveGroupRequest.Member],
    reply: Reply[LeaveGroupResponse],
) -> Effects:
    """LeaveGroup. A static member may be named by its instance id alone."""
    effects = Effects()
    response = LeaveGroupResponse()
    leaving: dict[str, None] = {}
    for each in members:
        row = LeaveGroupResponse.Member(
            member_id=each.member_id, group_instance_id=each.group_instance_id
        )
        response.members.append(row)
        try:
            member_id = each.member_id or group.state.static.get(each.group_instance_id or "", "")
            member, _ = _find(group.state, member_id, each.group_instance_id)
            leaving[member.member_id] = None
        except BrokerError as error:
            row.error_code = error.code
    if leaving:
        group.remove_members(leaving, effects)
    effects.deliver(reply, response)
    return effects


def _should_rejoin(group: ConsumerGroup, now_ms: int, member: ConsumerMember) -> bool:
    state = group.state
    if group.reachable_epoch(now_ms) > member.current.epoch:
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


def _await_rejoin(
    group: ConsumerGroup, now_ms: int, member: ConsumerMember, effects: Effects
) -> None:
    """Give it the time of its rebalance timeout, from when it first heard of it."""
    if member.member_id not in group.awaiting_rejoin:
        group.awaiting_rejoin.add(member.member_id)
        effects.set_timer((JOIN, member.member_id), now_ms + member.metadata.rebalance_timeout_ms)


def _find(
    state: ConsumerState, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, MemberMetadata.Classic]:
    """The member, which must speak the classic protocol; raises BrokerError."""
    member = find_member(state, member_id, instance_id)
    if member.classic is None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member, member.classic


# Between names and ids


def owned_by_name(
    rows: Sequence[
        ConsumerProtocolSubscription.TopicPartitions | ConsumerProtocolAssignment.TopicPartitions
    ],
    topics: TopicView,
) -> OwnedPartitions:
    """Partitions as clients name them; of topics that exist."""
    owned: dict[TopicId, set[int]] = {}
    for row in rows:
        topic = topics.topic(row.topic)
        if topic is not None:
            owned.setdefault(topic.topic_id, set()).update(row.partitions)
    return owned


def encoded_assignment(
    partition_epochs: PartitionEpochs, classic: MemberMetadata.Classic, topics: TopicView
) -> bytes:
    """What a member has, in the version of the consumers' protocol that it speaks."""
    shape = ConsumerProtocolAssignment
    rows = [
        shape.TopicPartitions(topic=name, partitions=sorted(partitions))
        for topic_id, partitions in partition_epochs.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    version = read_version(ConsumerProtocolSubscription, classic.supported_protocols[0].metadata)
    return encode_prefixed(shape(assigned_partitions=rows), version)
