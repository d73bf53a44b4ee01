"""Changing the protocol of a group while it is in use, in both directions (KIP-848).

Up: the first member that speaks the consumer protocol joins a classic group of consumers. The group
becomes a consumer group whose members have what they had; they go on as `consumer_classic` says,
and change over when they are restarted.

Down: the last member that speaks the consumer protocol goes, and only classic ones are left. The
group becomes a classic one with the same members, and rebalances.

An empty group of one kind simply gives way to a new one of the other: tombstones, and a join.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.coordination.effects import Effects
from millstream.env.random import Random
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.classic.classic_member import ClassicMember, select_protocol
from millstream.groups.classic.generation_record import StoredGeneration
from millstream.groups.classic.rebalance import JOIN_TIMER, SYNC_TIMER, ClassicGroupSettings
from millstream.groups.consumer.classic_protocol import encoded_assignment, owned_by_name
from millstream.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupSettings
from millstream.groups.consumer.consumer_state import ConsumerMember, MemberMetadata
from millstream.groups.consumer.membership import JOIN, REBALANCE, SYNC
from millstream.groups.consumer.reconciliation import CurrentAssignment
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE, Caller
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicId
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import decode_prefixed


class UpgradingHeartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat that reached a classic group."""

    request: ConsumerGroupHeartbeatRequest
    caller: Caller
    reply: Reply[ConsumerGroupHeartbeatResponse]


def upgrade(
    classic: ClassicGroup,
    settings: ConsumerGroupSettings,
    random: Random,
    now_ms: int,
    heartbeat: UpgradingHeartbeat,
    topics: TopicView,
) -> tuple[ConsumerGroup | None, Effects]:
    """Let a member of the consumer protocol into a classic group, which then is one no more.

    Returns the group that takes its place; None, with nothing but a refusal, if it stays.
    """
    group = ConsumerGroup(classic.group_id, settings, random)
    effects = Effects(records=classic.tombstones())
    try:
        _convert(classic, group, topics, effects)
    except BrokerError as error:
        response = ConsumerGroupHeartbeatResponse(
            error_code=error.code, error_message=error.message
        )
        return None, Effects(replies=[(heartbeat.reply, response)])
    joined = group.heartbeat(now_ms, heartbeat.request, heartbeat.caller, topics, heartbeat.reply)
    if joined.replies[0][1].error_code:
        return None, joined
    effects.include(classic.abandon(ErrorCode.REBALANCE_IN_PROGRESS))
    effects.cancel_timer(JOIN_TIMER)
    effects.cancel_timer(SYNC_TIMER)
    effects.include(group.loaded(now_ms))
    effects.include(joined)
    return group, effects


def _convert(
    classic: ClassicGroup, group: ConsumerGroup, topics: TopicView, effects: Effects
) -> None:
    """Make `group` of a classic group; raises GROUP_ID_NOT_FOUND where that can't be done."""
    members = list(classic.roster)
    if members and not classic.is_of_consumers:
        raise _not_convertible(classic, "its members are not consumers")
    if len(members) > group.settings.group_size_max:
        raise _not_convertible(classic, "it has too many members")
    taken: set[tuple[TopicId, int]] = set()
    # What members were assigned counts for more than what others say.
    for member in sorted(members, key=lambda each: not each.assignment):
        try:
            _convert_member(member, classic, group, topics, taken, effects)
        except DecodeError as error:
            raise _not_convertible(classic, f"a member's metadata is damaged: {error}") from None
    if classic.generation > 0:
        # The subscribed topics count as changed: whoever makes this happen starts a new epoch.
        group.state.write_epoch(effects, classic.generation, 0)
        group.state.write_target_epoch(effects, 0)


def _convert_member(
    member: ClassicMember,
    classic: ClassicGroup,
    group: ConsumerGroup,
    topics: TopicView,
    taken: set[tuple[TopicId, int]],
    effects: Effects,
) -> None:
    metadata = member.metadata(classic.protocol_name) or member.protocols[0][1]
    subscription = decode_prefixed(ConsumerProtocolSubscription, metadata)
    # A rebalance that was begun again leaves nobody an assignment, but members that don't stop for
    # it said what they own.
    owned = owned_by_name(subscription.owned_partitions, topics)
    if member.assignment:
        assignment = decode_prefixed(ConsumerProtocolAssignment, member.assignment)
        owned = owned_by_name(assignment.assigned_partitions, topics)
    assigned: dict[TopicId, dict[int, int]] = {}
    for topic_id, partitions in owned.items():
        for partition in sorted(partitions):
            # What a client's assignor gave to two members can stay with one.
            if (topic_id, partition) not in taken:
                taken.add((topic_id, partition))
                assigned.setdefault(topic_id, {})[partition] = classic.generation
    state, generation = group.state, classic.generation
    state.write_metadata(effects, member.member_id, _metadata(member, subscription))
    target = {topic_id: frozenset(each) for topic_id, each in assigned.items()}
    state.write_target(effects, member.member_id, target)
    current = CurrentAssignment(epoch=generation, previous_epoch=generation, assigned=assigned)
    state.write_current(effects, member.member_id, current)


def _metadata(member: ClassicMember, subscription: ConsumerProtocolSubscription) -> MemberMetadata:
    return MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(set(subscription.topics)),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic_member_metadata=MemberMetadata.Classic(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=[
                MemberMetadata.Classic.Protocol(name=name, metadata=metadata)
                for name, metadata in member.protocols
            ],
        ),
    )


def _not_convertible(classic: ClassicGroup, reason: str) -> BrokerError:
    return BrokerError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"group {classic.group_id[:80]!r} is not a consumer group and can't become one: {reason}",
    )


def downgrade(
    group: ConsumerGroup,
    settings: ClassicGroupSettings,
    random: Random,
    now_ms: int,
    topics: TopicView,
) -> tuple[ClassicGroup, Effects]:
    """The classic group that takes the place of one whose `is_all_classic`."""
    assert group.is_all_classic, "some member speaks the consumer protocol"
    members = [_classic_member(each, topics) for each in group.state.members.values()]
    stored = StoredGeneration(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        # Members that were up to date go on in it, and are told to rebalance.
        generation=max(each.current.epoch for each in group.state.members.values()),
        protocol_name=select_protocol(members),
        leader=members[0].member_id,
        state_since_ms=now_ms,
        members=members,
    )
    effects = Effects(records=group.tombstones())
    effects.append(*classic_record.encode(group.group_id, stored))
    for member in members:
        for what in (REBALANCE, JOIN, SYNC):
            effects.cancel_timer((what, member.member_id))
    classic = ClassicGroup(group.group_id, settings, random)
    classic.restore(stored)
    effects.include(classic.loaded(now_ms))
    effects.include(classic.rebalance(now_ms))
    return classic, effects


def _classic_member(member: ConsumerMember, topics: TopicView) -> ClassicMember:
    classic = member.classic
    assert classic is not None
    return ClassicMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.metadata.client_id,
        client_host=member.metadata.client_host,
        session_timeout_ms=classic.session_timeout_ms,
        rebalance_timeout_ms=member.metadata.rebalance_timeout_ms,
        protocols=tuple((each.name, each.metadata) for each in classic.supported_protocols),
        assignment=encoded_assignment(member.current.assigned, classic, topics),
    )
