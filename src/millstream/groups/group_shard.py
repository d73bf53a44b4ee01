"""The groups of one partition of `__consumer_offsets`, while this broker leads it.

Owns the groups and their offsets. `coordination.shard` describes the states of a shard and how its
changes are persisted.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.coordination.effects import Effects, LogRecord, TimerKey
from millstream.coordination.journal import TransactionEnd
from millstream.coordination.shard import CoordinatorShard, LedPartition, SetTimer, ShardReplay
from millstream.env.random import Random
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.consumer.heartbeat_request import JOIN_EPOCH
from millstream.groups.consumer.migration import UpgradingHeartbeat, downgrade, upgrade
from millstream.groups.group import Group
from millstream.groups.group_replay import GroupReplay
from millstream.groups.group_settings import GroupSettings
from millstream.groups.offset import GroupOffsets
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


class GroupShard(CoordinatorShard):
    """The groups and offsets of one partition."""

    __slots__ = ("_open_transactions", "groups", "offsets", "random", "settings")

    def __init__(
        self, led: LedPartition, set_timer: SetTimer, settings: GroupSettings, random: Random
    ) -> None:
        super().__init__(led, set_timer)
        self.settings = settings
        self.random = random
        self.groups: dict[str, Group] = {}
        #: The offsets of groups that have any. Each of these groups is in `groups`.
        self.offsets: dict[str, GroupOffsets] = {}
        #: By producer id: the groups with pending offsets in the producer's transaction.
        self._open_transactions: dict[int, set[str]] = {}

    def replay(self) -> ShardReplay:
        return GroupReplay(self)

    # Groups

    def new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.settings.classic, self.random)

    def new_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self.settings.consumer_of(group_id), self.random)

    def configure(self, settings: GroupSettings, group_ids: Iterable[str]) -> None:
        """Use new settings, and pass them to the groups whose settings changed."""
        self.settings = settings
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                group.configure(settings)

    def group_offsets(self, group_id: str) -> GroupOffsets:
        """Return the offsets of a group, created if necessary."""
        found = self.offsets.get(group_id)
        if found is None:
            found = self.offsets[group_id] = GroupOffsets(group_id)
        return found

    def erase(self, group: Group) -> list[LogRecord]:
        """Delete a group without members and its offsets; return the tombstones."""
        group_id = group.group_id
        offsets = self.offsets.pop(group_id, None)
        tombstones = offsets.delete_all() if offsets is not None else []
        del self.groups[group_id]
        group.delete()
        return tombstones + group.tombstones()

    def drop_or_downgrade(self, now_ms: int, group: Group, topics: TopicView) -> None:
        """After an event: drop a group that has no state worth keeping, and turn a consumer group
        whose members all speak the classic protocol into a classic group."""
        if (
            isinstance(group, ConsumerGroup)
            and group.is_all_classic
            and self.settings.allows_downgrade
        ):
            classic = self.groups[group.group_id] = self.new_classic(group.group_id)
            self.carry_out(group.group_id, downgrade(group, classic, now_ms, topics))
        elif self.groups.get(group.group_id) is group:
            self._drop_if_blank(group.group_id)

    def _drop_if_blank(self, group_id: str) -> None:
        if self.offsets.get(group_id):
            return
        self.offsets.pop(group_id, None)
        group = self.groups.get(group_id)
        if group is not None and group.is_blank:
            del self.groups[group_id]

    # The consumer protocol

    def consumer_heartbeat(
        self, now_ms: int, heartbeat: UpgradingHeartbeat, topics: TopicView
    ) -> None:
        """Handle ConsumerGroupHeartbeat; a member that joins creates or upgrades the group.

        Raises GROUP_ID_NOT_FOUND if the group is no consumer group and may not become one."""
        request, caller, reply = heartbeat
        group_id = request.group_id
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            self._check_upgrade(group, request)
            consumer = self.new_consumer(group_id)
            if isinstance(group, ClassicGroup):
                self._upgrade(now_ms, group, consumer, heartbeat, topics)
                return
            group = self.groups[group_id] = consumer
        self.carry_out(group_id, group.consumer_heartbeat(now_ms, request, caller, topics, reply))
        self.drop_or_downgrade(now_ms, group, topics)

    def _check_upgrade(self, group: Group | None, request: ConsumerGroupHeartbeatRequest) -> None:
        is_joining = request.member_epoch == JOIN_EPOCH
        is_allowed = group is None or group.is_empty or self.settings.allows_upgrade
        if not is_joining or not is_allowed:
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND)

    def _upgrade(
        self,
        now_ms: int,
        classic: ClassicGroup,
        consumer: ConsumerGroup,
        heartbeat: UpgradingHeartbeat,
        topics: TopicView,
    ) -> None:
        is_upgraded, effects = upgrade(classic, consumer, now_ms, heartbeat, topics)
        if is_upgraded:
            classic.delete()
            self.groups[classic.group_id] = consumer
        self.carry_out(classic.group_id, effects)

    # Transactions

    def add_to_transaction(self, producer_id: int, group_id: str) -> None:
        """Note that a producer's transaction has pending offsets of the group."""
        self._open_transactions.setdefault(producer_id, set()).add(group_id)

    def end_transaction(self, end: TransactionEnd, reply: Reply[None]) -> None:
        """Append a producer's marker, and commit or drop its pending offsets; the reply gets None
        once the marker is committed."""
        try:
            self.journal.append_marker(end)
        except BrokerError as error:
            reply.fail(error.code)
            return
        producer_id = end.producer.producer_id
        for group_id in self.complete_pending_offsets(producer_id, is_commit=end.is_commit):
            self._drop_if_blank(group_id)
        self.journal.carry_out(Effects(replies=[(reply, None)]))

    def complete_pending_offsets(self, producer_id: int, *, is_commit: bool) -> Iterable[str]:
        """Commit or drop the pending offsets of a transaction; return the groups that had any."""
        group_ids = self._open_transactions.pop(producer_id, ())
        for group_id in group_ids:
            offsets = self.offsets.get(group_id)
            if offsets is not None:
                offsets.complete_transaction(producer_id, is_commit=is_commit)
        return group_ids

    # Time and topics

    def expire_timer(self, now_ms: int, group_id: str, key: TimerKey, topics: TopicView) -> None:
        """Handle a group's timer that is due."""
        group = self.groups.get(group_id)
        if group is None:
            return
        self.carry_out(group_id, group.expire(now_ms, key))
        self.drop_or_downgrade(now_ms, group, topics)

    def expire_offsets(self, now_ms: int, retention_ms: int, group_id: str) -> int:
        """Delete the expired offsets of a group, and the group if it is empty then.

        Return the number of expired offsets."""
        group = self.groups.get(group_id)
        if group is None:
            return 0
        effects = Effects()
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            effects.records += offsets.expire(now_ms, retention_ms, group)
        count = len(effects.records)
        if offsets is not None and not offsets:
            del self.offsets[group_id]
            offsets = None
        if offsets is None and group.is_empty and not group.has_pending_members:
            effects.records += self.erase(group)
        if effects.records:
            self.carry_out(group_id, effects)
        return count

    def forget_topic(self, topic: str) -> None:
        """Delete all offsets of a topic that was deleted."""
        for group_id, offsets in list(self.offsets.items()):
            tombstones = offsets.delete_topic(topic)
            if tombstones:
                self.carry_out(group_id, Effects(records=tombstones))

    # Lifetime

    def open(self, now_ms: int) -> None:
        super().open(now_ms)
        for group_id in self.offsets.keys() - self.groups.keys():
            self.groups[group_id] = self.new_classic(group_id)
        for group_id, group in self.groups.items():
            self.carry_out(group_id, group.loaded(now_ms))

    def close(self, code: ErrorCode) -> None:
        super().close(code)
        for group in self.groups.values():
            for reply, result in group.fail_waiting(code).replies:
                reply.deliver(result)
