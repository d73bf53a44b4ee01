"""Migration of a group between the protocols while it has members (KIP-848).

Upgrade: the first member of the consumer protocol joins a classic group of consumers. The group
becomes a consumer group whose members keep their partitions. They continue as `classic_protocol`
describes, and change over when their clients are restarted.

Downgrade: the last member of the consumer protocol leaves, and only classic members remain. The
group becomes a classic group with the same members, and rebalances.

An empty group needs no migration: tombstones delete it, and a new group of the other kind replaces
it. This is the only module that knows groups of both kinds by their class.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.coordination.effects import Effects
from millstream.groups.classic import generation_record as classic_record
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.classic.classic_member import ClassicMember, select_protocol
from millstream.groups.classic.generation_record import StoredGeneration
from millstream.groups.classic.rebalance import JOIN_TIMER, SYNC_TIMER
from millstream.groups.consumer.classic_protocol import encoded_assignment, owned_by_name
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.consumer_state import ConsumerMember, MemberMetadata
from millstream.groups.consumer.membership import JOIN, REBALANCE, SYNC
from millstream.groups.consumer.reconciliation import CurrentAssignment, OwnedPartitions
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
    """A ConsumerGroupHeartbeat, which may upgrade a classic group."""

    request: ConsumerGroupHeartbeatRequest
    caller: Caller
    reply: Reply[ConsumerGroupHeartbeatResponse]


def upgrade(
    classic: ClassicGroup,
    consumer: ConsumerGroup,
    now_ms: int,
    heartbeat: UpgradingHeartbeat,
    topics: TopicView,
) -> tuple[bool, Effects]:
    """Turn a classic group into `consumer`, a new group that the sender of the heartbeat joins.

    Return whether `consumer` replaces the classic group. If not, the effects hold the rejection
    only."""
    effects = Effects(records=classic.tombstones())
    try:
        _Upgrade(classic, consumer, topics, effects).convert()
    except BrokerError as error:
        response = ConsumerGroupHeartbeatResponse(
            error_code=error.code, error_message=error.message
        )
        return False, Effects(replies=[(heartbeat.reply, response)])
    joined = consumer.consumer_heartbeat(
        now_ms, heartbeat.request, heartbeat.caller, topics, heartbeat.reply
    )
    if joined.replies[0][1].error_code:
        return False, joined
    effects.include(classic.fail_waiting(ErrorCode.REBALANCE_IN_PROGRESS))
    effects.cancel_timer(JOIN_TIMER)
    effects.cancel_timer(SYNC_TIMER)
    effects.include(consumer.loaded(now_ms))
    effects.include(joined)
    return True, effects


class _Upgrade:
    """The conversion of one classic group; its records go to `effects`."""

    __slots__ = ("_assigned", "_classic", "_consumer", "_effects", "_topics")

    def __init__(
        self,
        classic: ClassicGroup,
        consumer: ConsumerGroup,
        topics: TopicView,
        effects: Effects,
    ) -> None:
        self._classic = classic
        self._consumer = consumer
        self._topics = topics
        self._effects = effects
        #: Partitions that have an owner already.
        self._assigned: set[tuple[TopicId, int]] = set()

    def convert(self) -> None:
        """Convert all members; raise GROUP_ID_NOT_FOUND if that is impossible."""
        classic, state = self._classic, self._consumer.state
        members = list(classic.roster)
        if members and not classic.is_of_consumers:
            raise _not_convertible(classic, "its members are not consumers")
        if len(members) > self._consumer.settings.group_size_max:
            raise _not_convertible(classic, "it has too many members")
        # Members with an assignment come first: it takes precedence over owned partitions that
        # other members report.
        for member in sorted(members, key=lambda each: not each.assignment):
            try:
                self._convert_member(member)
            except DecodeError as error:
                reason = f"a member's metadata is damaged: {error}"
                raise _not_convertible(classic, reason) from None
        if classic.generation > 0:
            # Hash 0 marks the subscribed topics as changed, so that the heartbeat that caused the
            # upgrade starts a new epoch.
            state.write_epoch(self._effects, classic.generation, 0)
            state.write_target_epoch(self._effects, 0)

    def _convert_member(self, member: ClassicMember) -> None:
        classic, state, effects = self._classic, self._consumer.state, self._effects
        metadata = member.metadata(classic.protocol_name) or member.protocols[0][1]
        subscription = decode_prefixed(ConsumerProtocolSubscription, metadata)
        generation = classic.generation
        assigned: dict[TopicId, dict[int, int]] = {}
        for topic_id, partitions in self._owned(member, subscription).items():
            for partition in sorted(partitions):
                # A client's assignor may give a partition to two members; only one keeps it.
                if (topic_id, partition) not in self._assigned:
                    self._assigned.add((topic_id, partition))
                    assigned.setdefault(topic_id, {})[partition] = generation
        state.write_metadata(effects, member.member_id, _metadata(member, subscription))
        target = {topic_id: frozenset(each) for topic_id, each in assigned.items()}
        state.write_target(effects, member.member_id, target)
        current = CurrentAssignment(epoch=generation, previous_epoch=generation, assigned=assigned)
        state.write_current(effects, member.member_id, current)

    def _owned(
        self, member: ClassicMember, subscription: ConsumerProtocolSubscription
    ) -> OwnedPartitions:
        """Return the member's assignment, or the partitions that it reported to own.

        A rebalance that starts over leaves no member an assignment, but members that continue to
        consume during a rebalance report their partitions."""
        if not member.assignment:
            return owned_by_name(subscription.owned_partitions, self._topics)
        assignment = decode_prefixed(ConsumerProtocolAssignment, member.assignment)
        return owned_by_name(assignment.assigned_partitions, self._topics)


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
        f"group {classic.group_id[:80]!r} is not a consumer group and cannot become one: {reason}",
    )


def downgrade(
    group: ConsumerGroup, classic: ClassicGroup, now_ms: int, topics: TopicView
) -> Effects:
    """Turn a consumer group of classic members into `classic`, a new group that replaces it."""
    assert group.is_all_classic, "some member speaks the consumer protocol"
    members = [_classic_member(each, topics) for each in group.state.members.values()]
    stored = StoredGeneration(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        # Members that are up to date stay in this generation, and get REBALANCE_IN_PROGRESS.
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
    classic.restore(stored)
    effects.include(classic.loaded(now_ms))
    effects.include(classic.rebalance(now_ms))
    return effects


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
