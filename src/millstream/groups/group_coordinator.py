"""The group coordinator of this broker: finds the group that a request is for, and lets it act.

Requests come with a `Reply`, which gets the result at once or later. Whoever asks for a
group that lives elsewhere gets NOT_COORDINATOR, and COORDINATOR_LOAD_IN_PROGRESS while its
partition is being loaded.

Where groups are kept, loaded and timed is `shards`'. Does not create the offsets topic; the broker
does, when a client first looks for a coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from millstream.coordination.effects import Effects, LogRecord, ProducerIdAndEpoch
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.consumer.classic_protocol import (
    heartbeat_consumer_group,
    join_consumer_group,
    leave_consumer_group,
    sync_consumer_group,
)
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.heartbeat_request import JOIN_EPOCH
from millstream.groups.consumer.migration import UpgradingHeartbeat, upgrade
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE, Caller, Group
from millstream.groups.group_shard import GroupShard
from millstream.groups.group_shards import GroupShards
from millstream.groups.offset import CommittedOffset, GroupOffsets
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

T = TypeVar("T")

#: From this version on who commits may be told that there is no such group.
_NOT_FOUND_COMMIT_SINCE: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """An OffsetCommit whose topics were found to exist."""

    group_id: str
    member_id: str
    instance_id: str | None
    #: Or the member epoch.
    generation: int
    version: int
    offsets: Sequence[tuple[str, int, CommittedOffset]]


class GroupCoordinator:
    """See the module's text. Event loop only."""

    __slots__ = ("shards",)

    def __init__(self, shards: GroupShards) -> None:
        self.shards = shards

    def find(self, group_id: str) -> Group | None:
        """A group that is served here. Raises as `GroupShards.of` does."""
        return self.shards.of(group_id).groups.get(group_id)

    # The classic protocol

    def join(
        self, request: JoinGroupRequest, caller: Caller, reply: Reply[JoinGroupResponse]
    ) -> None:
        now_ms, topics = self.shards.now_ms, self.shards.topics
        try:
            _check_group_id(request.group_id)
            self._check_session_timeout(request.session_timeout_ms)
            shard = self.shards.of(request.group_id)
            group, tombstones = _joinable(shard, request)
        except BrokerError as error:
            reply.fail(error.code)
            return
        effects = Effects(records=tombstones)
        if isinstance(group, ConsumerGroup):
            joined = join_consumer_group(group, now_ms, request, caller, topics, reply)
        else:
            joined = group.join(now_ms, request, caller, reply)
        effects.include(joined)
        self._carry_out(shard, group, effects)

    def _check_session_timeout(self, timeout_ms: int) -> None:
        options = self.shards.options
        if not options.session_timeout_ms_min <= timeout_ms <= options.session_timeout_ms_max:
            raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)

    def sync(self, request: SyncGroupRequest, reply: Reply[SyncGroupResponse]) -> None:
        now_ms, topics = self.shards.now_ms, self.shards.topics
        try:
            shard, group = self._of_member(request.group_id)
        except BrokerError as error:
            reply.fail(error.code)
            return
        if isinstance(group, ConsumerGroup):
            effects = sync_consumer_group(group, now_ms, request, topics, reply)
        else:
            effects = group.sync(now_ms, request, reply)
        self._carry_out(shard, group, effects)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Answered at once: it says nothing that could be taken back. NONE for every member while
        the group is being loaded, as in Kafka: some clients fail at COORDINATOR_LOAD_IN_PROGRESS
        here."""
        now_ms = self.shards.now_ms
        try:
            shard, group = self._of_member(group_id)
        except BrokerError as error:
            is_loading = error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ErrorCode.NONE if is_loading else error.code
        effects = Effects()
        if isinstance(group, ConsumerGroup):
            code = heartbeat_consumer_group(
                group, now_ms, member_id, instance_id, generation, effects
            )
        else:
            code = group.heartbeat(now_ms, member_id, instance_id, generation, effects)
        shard.carry_out(group_id, effects)
        return code

    def leave(
        self,
        group_id: str,
        members: Sequence[LeaveGroupRequest.Member],
        reply: Reply[LeaveGroupResponse],
    ) -> None:
        try:
            shard, group = self._of_member(group_id)
        except BrokerError as error:
            reply.fail(error.code)
            return
        if isinstance(group, ConsumerGroup):
            effects = leave_consumer_group(group, members, reply)
        else:
            effects = group.leave(self.shards.now_ms, members, reply)
        self._carry_out(shard, group, effects)

    def _of_member(self, group_id: str) -> tuple[GroupShard, ClassicGroup | ConsumerGroup]:
        """The group that a member says to be in."""
        _check_group_id(group_id)
        shard = self.shards.of(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
        assert isinstance(group, ClassicGroup | ConsumerGroup)
        return shard, group

    def _carry_out(self, shard: GroupShard, group: Group, effects: Effects) -> None:
        shard.carry_out(group.group_id, effects)
        shard.drop_or_downgrade(self.shards.now_ms, group, self.shards.topics)

    # The consumer protocol

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        reply: Reply[ConsumerGroupHeartbeatResponse],
    ) -> None:
        """ConsumerGroupHeartbeat: to join, to leave, or to go on."""
        now_ms, topics = self.shards.now_ms, self.shards.topics
        group_id = request.group_id
        try:
            shard = self.shards.of(group_id)
            group = shard.groups.get(group_id)
            if not isinstance(group, ConsumerGroup):
                _check_upgrade(shard, group, request)
        except BrokerError as error:
            reply.fail(error.code)
            return
        if isinstance(group, ClassicGroup):
            heartbeat = UpgradingHeartbeat(request, caller, reply)
            settings, random = shard.settings.consumer_of(group_id), shard.random
            upgraded, effects = upgrade(group, settings, random, now_ms, heartbeat, topics)
            if upgraded is not None:
                group.delete()
                shard.groups[group_id] = upgraded
            shard.carry_out(group_id, effects)
            return
        if group is None:
            group = shard.groups[group_id] = shard.new_consumer(group_id)
        assert isinstance(group, ConsumerGroup)
        effects = group.heartbeat(now_ms, request, caller, topics, reply)
        self._carry_out(shard, group, effects)

    # Offsets

    def commit(
        self, commit: OffsetCommit, reply: Reply[None], producer: ProducerIdAndEpoch | None = None
    ) -> None:
        """Keep offsets; the reply gets None once they are kept.

        With a producer they are part of its transaction: kept now, and seen once it is
        committed."""
        try:
            shard = self.shards.of(commit.group_id)
            group = self._committing(shard, commit)
            effects = group.commit(
                self.shards.now_ms,
                commit.member_id,
                commit.instance_id,
                commit.generation,
                commit.version,
                [(committed.topic_id, number) for _, number, committed in commit.offsets],
                is_transactional=producer is not None,
            )
        except BrokerError as error:
            reply.fail(error.code)
            return
        if commit.offsets:
            shard.groups.setdefault(commit.group_id, group)
            effects.producer = producer
            effects.records += _records(shard, commit, producer)
        effects.deliver(reply, None)
        shard.carry_out(commit.group_id, effects)

    def _committing(self, shard: GroupShard, commit: OffsetCommit) -> Group:
        """The group; a new one for whoever does not claim to be a member of an old one."""
        group = shard.groups.get(commit.group_id)
        if group is not None:
            return group
        if commit.generation >= 0:
            # Errors that make a member join again; older ones know only the other.
            is_known = commit.version >= _NOT_FOUND_COMMIT_SINCE
            raise BrokerError(
                ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION
            )
        return shard.new_classic(commit.group_id)

    def end_transaction(
        self,
        index: int,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        reply: Reply[None],
    ) -> None:
        """End a producer's transaction in one partition of the offsets topic, and with it settle
        the offsets that it committed there; the reply gets None."""
        try:
            shard = self.shards.at(index)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.end_transaction(
            producer,
            is_commit=is_commit,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            reply=reply,
        )

    def offsets(
        self, group_id: str, member_id: str | None = None, member_epoch: int = -1
    ) -> GroupOffsets:
        """What a group has committed; nothing of one that is not known. The response made of it
        must go through `respond`."""
        shard = self.shards.of(group_id)
        group = shard.groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        return shard.offsets.get(group_id) or GroupOffsets(group_id)

    def respond(self, group_id: str, reply: Reply[T], result: T) -> None:
        """Deliver a result once the group's state, of which it was made, is committed."""
        try:
            shard = self.shards.of(group_id)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.carry_out(group_id, Effects(replies=[(reply, result)]))

    def delete_offsets(
        self, group_id: str, places: Sequence[tuple[str, int]], reply: Reply[list[ErrorCode]]
    ) -> None:
        """Forget offsets of topics that no member subscribes to; the reply gets a code each."""
        try:
            shard = self.shards.of(group_id)
            group = shard.groups.get(group_id)
            if group is None:
                raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
            if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                # Only of consumers do we know what they subscribe to.
                raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
        except BrokerError as error:
            reply.fail(error.code)
            return
        effects = Effects()
        codes: list[ErrorCode] = []
        offsets = shard.offsets.get(group_id)
        for topic, number in places:
            if group.is_subscribed(topic):
                codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            codes.append(ErrorCode.NONE)
            if offsets is not None:
                effects.records += offsets.delete(topic, number)
        effects.deliver(reply, codes)
        shard.carry_out(group_id, effects)

    # Administration

    def delete_group(self, group_id: str, reply: Reply[None]) -> None:
        """Forget a group without members, offsets and all; the reply gets None."""
        try:
            shard = self.shards.of(group_id)
            group = shard.groups.get(group_id)
            if group is None:
                raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
            if not group.is_empty:
                raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
        except BrokerError as error:
            reply.fail(error.code)
            return
        effects = Effects(records=shard.erase(group))
        effects.deliver(reply, None)
        shard.carry_out(group_id, effects)


def _records(
    shard: GroupShard, commit: OffsetCommit, producer: ProducerIdAndEpoch | None
) -> list[LogRecord]:
    """Takes over the offsets of a commit."""
    offsets = shard.group_offsets(commit.group_id)
    if producer is None:
        return [offsets.commit(*each) for each in commit.offsets]
    producer_id = producer.producer_id
    shard.add_to_transaction(producer_id, commit.group_id)
    return [offsets.commit_pending(producer_id, *each) for each in commit.offsets]


def _joinable(
    shard: GroupShard, request: JoinGroupRequest
) -> tuple[ClassicGroup | ConsumerGroup, list[LogRecord]]:
    """The group to join, made if need be, and what must be erased for it."""
    group_id = request.group_id
    group = shard.groups.get(group_id)
    if isinstance(group, ClassicGroup) or (isinstance(group, ConsumerGroup) and not group.is_empty):
        return group, []
    if request.member_id:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    made = shard.groups[group_id] = shard.new_classic(group_id)
    return made, group.tombstones() if group is not None else []


def _check_upgrade(
    shard: GroupShard, group: Group | None, request: ConsumerGroupHeartbeatRequest
) -> None:
    """GROUP_ID_NOT_FOUND unless a member may make a consumer group of what is there."""
    is_joining = request.member_epoch == JOIN_EPOCH
    is_allowed = group is None or group.is_empty or shard.settings.allows_upgrade
    if not is_joining or not is_allowed:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)


def _check_group_id(group_id: str) -> None:
    """Offsets may be committed under the empty id, but nobody can join that group."""
    if not group_id:
        raise BrokerError(ErrorCode.INVALID_GROUP_ID)
