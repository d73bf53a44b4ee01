"""The group coordinator of this broker: routes each request to its group.

Requests come with a `Reply`, which gets the result at once or later. A request for a group whose
partition another broker leads gets NOT_COORDINATOR, and COORDINATOR_LOAD_IN_PROGRESS while the
partition is being loaded.

`group_shards` stores, loads and times the groups. The broker creates the offsets topic, when a
client first looks for a coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from millstream.coordination.effects import Effects, LogRecord
from millstream.coordination.journal import TransactionEnd
from millstream.groups.consumer.migration import UpgradingHeartbeat
from millstream.groups.group import CONSUMER_PROTOCOL_TYPE, Caller, Group
from millstream.groups.group_shard import GroupShard
from millstream.groups.group_shards import GroupShards
from millstream.groups.offset import GroupOffsets
from millstream.groups.offset_commit import OffsetCommit
from millstream.groups.subscription.topic_view import TopicView, VisibleTopics
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

#: From this version on OffsetCommit may return GROUP_ID_NOT_FOUND.
_NOT_FOUND_COMMIT_SINCE: Final = 9


class GroupCoordinator:
    """Routes requests to the groups of this broker. Event loop only."""

    __slots__ = ("shards",)

    def __init__(self, shards: GroupShards) -> None:
        self.shards = shards

    def find(self, group_id: str) -> Group | None:
        """Return a group, or None if it does not exist. Raises as `GroupShards.of` does."""
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
        effects.include(group.join(now_ms, request, caller, topics, reply))
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
        self._carry_out(shard, group, group.sync(now_ms, request, topics, reply))

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Handle Heartbeat. The response is immediate, because it depends on no record.

        While the group is being loaded, every member gets NONE, as in Kafka: some clients fail on
        COORDINATOR_LOAD_IN_PROGRESS here."""
        now_ms = self.shards.now_ms
        try:
            shard, group = self._of_member(group_id)
        except BrokerError as error:
            is_loading = error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ErrorCode.NONE if is_loading else error.code
        effects = Effects()
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
        self._carry_out(shard, group, group.leave(self.shards.now_ms, members, reply))

    def _of_member(self, group_id: str) -> tuple[GroupShard, Group]:
        """Return the group of a member; raise UNKNOWN_MEMBER_ID if it does not exist."""
        _check_group_id(group_id)
        shard = self.shards.of(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
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
        is_visible: Callable[[str], bool] | None = None,
    ) -> None:
        """Handle ConsumerGroupHeartbeat: a member joins, leaves or stays.

        Topic patterns match only topics that `is_visible` accepts; None accepts all."""
        topics: TopicView = self.shards.topics
        if is_visible is not None:
            topics = VisibleTopics(topics, is_visible)
        heartbeat = UpgradingHeartbeat(request, caller, reply)
        try:
            shard = self.shards.of(request.group_id)
            shard.consumer_heartbeat(self.shards.now_ms, heartbeat, topics)
        except BrokerError as error:
            reply.fail(error.code)

    # Offsets

    def commit(self, commit: OffsetCommit, reply: Reply[None]) -> None:
        """Commit offsets; the reply gets None once their records are committed.

        Offsets of a transaction are pending until the transaction commits."""
        try:
            shard = self.shards.of(commit.group_id)
            group = self._committing(shard, commit)
            effects = group.commit(self.shards.now_ms, commit)
        except BrokerError as error:
            reply.fail(error.code)
            return
        if commit.offsets:
            shard.groups.setdefault(commit.group_id, group)
            effects.producer = commit.producer
            effects.records += _commit_offsets(shard, commit)
        effects.deliver(reply, None)
        shard.carry_out(commit.group_id, effects)

    def _committing(self, shard: GroupShard, commit: OffsetCommit) -> Group:
        """Return the group that commits; a new group for a client that is no member."""
        group = shard.groups.get(commit.group_id)
        if group is not None:
            return group
        if commit.generation >= 0:
            # Both codes make a member join again; older clients know only the second.
            is_known = commit.version >= _NOT_FOUND_COMMIT_SINCE
            raise BrokerError(
                ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION
            )
        return shard.new_classic(commit.group_id)

    def end_transaction(self, index: int, end: TransactionEnd, reply: Reply[None]) -> None:
        """End a producer's transaction in one partition of the offsets topic: its pending offsets
        are committed or dropped. The reply gets None."""
        try:
            shard = self.shards.at(index)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.end_transaction(end, reply)

    def offsets(
        self, group_id: str, member_id: str | None = None, member_epoch: int = -1
    ) -> GroupOffsets:
        """Return the committed offsets of a group; none if it does not exist. The response made of
        them must go through `respond`."""
        shard = self.shards.of(group_id)
        group = shard.groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        return shard.offsets.get(group_id) or GroupOffsets(group_id)

    def respond(self, group_id: str, reply: Reply[T], result: T) -> None:
        """Deliver a result once the records of the state that it was made of are committed."""
        try:
            shard = self.shards.of(group_id)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.carry_out(group_id, Effects(replies=[(reply, result)]))

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]], reply: Reply[list[ErrorCode]]
    ) -> None:
        """Delete offsets of unsubscribed topics; the reply gets an error code per partition."""
        try:
            shard = self.shards.of(group_id)
            group = shard.groups.get(group_id)
            if group is None:
                raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)
            if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                # The subscriptions of other protocol types are unknown.
                raise BrokerError(ErrorCode.NON_EMPTY_GROUP)
        except BrokerError as error:
            reply.fail(error.code)
            return
        effects = Effects()
        codes: list[ErrorCode] = []
        offsets = shard.offsets.get(group_id)
        for topic, number in partitions:
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
        """Delete a group without members and its offsets; the reply gets None."""
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


def _commit_offsets(shard: GroupShard, commit: OffsetCommit) -> list[LogRecord]:
    """Commit the offsets, pending in a transaction; return their records."""
    offsets = shard.group_offsets(commit.group_id)
    if commit.producer is None:
        return [offsets.commit(*each) for each in commit.offsets]
    producer_id = commit.producer.producer_id
    shard.add_to_transaction(producer_id, commit.group_id)
    return [offsets.commit_pending(producer_id, *each) for each in commit.offsets]


def _joinable(shard: GroupShard, request: JoinGroupRequest) -> tuple[Group, list[LogRecord]]:
    """Return the group to join, created if necessary, and tombstones of a group it replaces."""
    group_id = request.group_id
    group = shard.groups.get(group_id)
    if group is not None and group.is_joinable:
        return group, []
    if request.member_id:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID)
    created = shard.groups[group_id] = shard.new_classic(group_id)
    return created, group.tombstones() if group is not None else []


def _check_group_id(group_id: str) -> None:
    """Raise INVALID_GROUP_ID for the empty id: clients may commit under it, but not join."""
    if not group_id:
        raise BrokerError(ErrorCode.INVALID_GROUP_ID)
