"""The groups of one partition of `__consumer_offsets`, while this broker leads it.

Owns the groups and their offsets. Its states, and how changes are made to last, are those of every
coordinator's shard (`coordination.shard`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream.coordination.effects import Effects, LogRecord, ProducerIdAndEpoch, TimerKey
from millstream.coordination.journal import Journal
from millstream.coordination.shard import CoordinatorShard, SetTimer, ShardReplay
from millstream.env.random import Random
from millstream.groups.classic.classic_group import ClassicGroup, ClassicGroupSettings
from millstream.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupSettings
from millstream.groups.consumer.migration import downgrade
from millstream.groups.group import Group
from millstream.groups.group_replay import GroupReplay
from millstream.groups.offset import GroupOffsets
from millstream.groups.subscription.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map
from millstream.model.reply import Reply


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How groups of each kind behave."""

    classic: ClassicGroupSettings = field(default_factory=ClassicGroupSettings)
    consumer: ConsumerGroupSettings = field(default_factory=ConsumerGroupSettings)
    #: Of consumer groups that set something for themselves.
    own: Map[str, ConsumerGroupSettings] = field(default_factory=Map)
    #: Whether a group with members may change its protocol, to the newer and to the older one.
    allows_upgrade: bool = True
    allows_downgrade: bool = True

    def consumer_of(self, group_id: str) -> ConsumerGroupSettings:
        return self.own.get(group_id, self.consumer)


class GroupShard(CoordinatorShard):
    """See the module's text."""

    __slots__ = ("_open_transactions", "groups", "offsets", "random", "settings")

    def __init__(
        self,
        index: int,
        leader_epoch: int,
        journal: Journal,
        set_timer: SetTimer,
        settings: GroupSettings,
        random: Random,
    ) -> None:
        super().__init__(index, leader_epoch, journal, set_timer)
        self.settings = settings
        self.random = random
        self.groups: dict[str, Group] = {}
        #: Of groups that have any. Each of them is among `groups`.
        self.offsets: dict[str, GroupOffsets] = {}
        #: Groups with offsets in the transaction of each producer id.
        self._open_transactions: dict[int, set[str]] = {}

    def replay(self) -> ShardReplay:
        return GroupReplay(self)

    # Groups

    def new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.settings.classic, self.random)

    def new_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self.settings.consumer_of(group_id), self.random)

    def configure(self, settings: GroupSettings, group_ids: Iterable[str]) -> None:
        """Run with other settings from now on; those named have settings of their own, or had."""
        self.settings = settings
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                group.settings = settings.consumer_of(group_id)

    def group_offsets(self, group_id: str) -> GroupOffsets:
        """Of a group that is about to commit."""
        found = self.offsets.get(group_id)
        if found is None:
            found = self.offsets[group_id] = GroupOffsets(group_id)
        return found

    def erase(self, group: Group) -> list[LogRecord]:
        """Forget a group without members, with its offsets."""
        group_id = group.group_id
        offsets = self.offsets.pop(group_id, None)
        tombstones = offsets.delete_all() if offsets is not None else []
        del self.groups[group_id]
        if isinstance(group, ClassicGroup):
            group.delete()
        return tombstones + group.tombstones()

    def drop_or_downgrade(self, now_ms: int, group: Group, topics: TopicView) -> None:
        """After an event: drop a group that exists in memory only and has nothing to tell, and
        let the classic protocol take over where nobody is left who speaks the newer one."""
        if (
            isinstance(group, ConsumerGroup)
            and group.is_all_classic
            and self.settings.allows_downgrade
        ):
            classic, effects = downgrade(group, self.settings.classic, self.random, now_ms, topics)
            self.groups[group.group_id] = classic
            self.carry_out(group.group_id, effects)
        elif self.groups.get(group.group_id) is group:
            self._drop_if_blank(group.group_id)

    def _drop_if_blank(self, group_id: str) -> None:
        if self.offsets.get(group_id):
            return
        self.offsets.pop(group_id, None)
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup | ConsumerGroup) and group.is_blank:
            del self.groups[group_id]

    # Transactions

    def add_to_transaction(self, producer_id: int, group_id: str) -> None:
        """Offsets of a group became part of a producer's transaction."""
        self._open_transactions.setdefault(producer_id, set()).add(group_id)

    def end_transaction(
        self,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        reply: Reply[None],
    ) -> None:
        """Write a producer's marker, and settle its offsets by it; the reply gets None once the
        marker is committed."""
        try:
            self.journal.append_marker(
                producer,
                is_commit=is_commit,
                coordinator_epoch=coordinator_epoch,
                transaction_version=transaction_version,
            )
        except BrokerError as error:
            reply.fail(error.code)
            return
        for group_id in self.complete_pending_offsets(producer.producer_id, is_commit=is_commit):
            self._drop_if_blank(group_id)
        self.journal.carry_out(Effects(replies=[(reply, None)]))

    def complete_pending_offsets(self, producer_id: int, *, is_commit: bool) -> Iterable[str]:
        """Keep or drop what is pending in a transaction; in which groups."""
        group_ids = self._open_transactions.pop(producer_id, ())
        for group_id in group_ids:
            offsets = self.offsets.get(group_id)
            if offsets is not None:
                offsets.complete_transaction(producer_id, is_commit=is_commit)
        return group_ids

    # Time and topics

    def expire_timer(self, now_ms: int, group_id: str, key: TimerKey, topics: TopicView) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        self.carry_out(group_id, group.expire(now_ms, key))
        self.drop_or_downgrade(now_ms, group, topics)

    def expire_offsets(self, now_ms: int, retention_ms: int, group_id: str) -> int:
        """Drop what one group no longer needs, and the group if nothing is left; how many."""
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
        if offsets is None and group.is_empty and _is_unused(group):
            effects.records += self.erase(group)
        if effects.records:
            self.carry_out(group_id, effects)
        return count

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted, and with it every offset in it."""
        for group_id, offsets in list(self.offsets.items()):
            tombstones = offsets.delete_topic(topic)
            if tombstones:
                self.carry_out(group_id, Effects(records=tombstones))

    # Its life

    def open(self, now_ms: int) -> None:
        super().open(now_ms)
        for group_id in self.offsets.keys() - self.groups.keys():
            self.groups[group_id] = self.new_classic(group_id)
        for group_id, group in self.groups.items():
            self.carry_out(group_id, group.loaded(now_ms))

    def close(self, code: ErrorCode) -> None:
        super().close(code)
        for group in self.groups.values():
            for reply, result in group.abandon(code).replies:
                reply.deliver(result)


def _is_unused(group: Group) -> bool:
    """Whether an empty group without offsets can go: one that members are about to join stays."""
    return not (isinstance(group, ClassicGroup) and group.roster.pending)
