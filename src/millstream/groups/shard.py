"""The groups of one partition of `__consumer_offsets`, while this broker leads it.

    LOADING   its records are being replayed; nobody is served
    ACTIVE    groups are served and changed
    CLOSED    leadership went elsewhere, or the records could not be written: this shard is history

Owns the groups, their offsets and the journal that makes changes last. Timers are the
coordinator's, as one heap serves all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from immutables import Map

from millstream.env.random import Random
from millstream.groups.classic import ClassicGroup, ClassicSettings
from millstream.groups.consumer import ConsumerGroup, ConsumerSettings
from millstream.groups.consumer_migration import downgrade
from millstream.groups.effects import Effects, LogRecord, TimerKey
from millstream.groups.group import Group
from millstream.groups.journal import Journal
from millstream.groups.offset import GroupOffsets
from millstream.groups.topic_view import TopicView
from millstream.model.error import BrokerError, ErrorCode

#: Partition of the offsets topic, group, and the group's own key.
ShardTimer: TypeAlias = tuple[int, str, TimerKey]
#: Sets a timer, or cancels it where the time is None.
SetTimer: TypeAlias = Callable[[ShardTimer, int | None], None]


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How groups of each kind behave."""

    classic: ClassicSettings = field(default_factory=ClassicSettings)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    #: Of consumer groups that set something for themselves.
    own: Map[str, ConsumerSettings] = field(default_factory=Map)
    #: Whether a group with members may change its protocol, to the newer and to the older one.
    allows_upgrade: bool = True
    allows_downgrade: bool = True

    def consumer_of(self, group_id: str) -> ConsumerSettings:
        return self.own.get(group_id, self.consumer)


class Shard:
    """See the module's text."""

    __slots__ = (
        "_journal",
        "_set_timer",
        "groups",
        "index",
        "leader_epoch",
        "offsets",
        "random",
        "settings",
        "state",
    )

    def __init__(
        self,
        index: int,
        leader_epoch: int,
        settings: GroupSettings,
        random: Random,
        journal: Journal,
        set_timer: SetTimer,
    ) -> None:
        self.index = index
        #: In which this broker leads, and the records were read.
        self.leader_epoch = leader_epoch
        self.settings = settings
        self.random = random
        self._journal = journal
        self._set_timer = set_timer
        self.state = ShardState.LOADING
        self.groups: dict[str, Group] = {}
        #: Of groups that have any. Each of them is among `groups`.
        self.offsets: dict[str, GroupOffsets] = {}

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

    def tidy(self, now_ms: int, group: Group, topics: TopicView) -> None:
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
        elif (
            isinstance(group, ClassicGroup | ConsumerGroup)
            and group.is_blank
            and not self.offsets.get(group.group_id)
            and self.groups.get(group.group_id) is group
        ):
            del self.groups[group.group_id]
            self.offsets.pop(group.group_id, None)

    # Effects

    def carry_out(self, group_id: str, effects: Effects) -> None:
        for key, due_ms in effects.timers:
            self._set_timer((self.index, group_id, key), due_ms)
        self._journal.carry_out(effects)

    @property
    def is_settled(self) -> bool:
        return self._journal.is_settled

    def expire_timer(self, now_ms: int, group_id: str, key: TimerKey, topics: TopicView) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        self.carry_out(group_id, group.expire(now_ms, key))
        self.tidy(now_ms, group, topics)

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
        """All records were replayed: serve."""
        self.state = ShardState.ACTIVE
        for group_id in self.offsets.keys() - self.groups.keys():
            self.groups[group_id] = self.new_classic(group_id)
        for group_id, group in self.groups.items():
            self.carry_out(group_id, group.loaded(now_ms))

    def close(self, code: ErrorCode) -> None:
        """Serve no more; everybody who waits is told `code`."""
        self.state = ShardState.CLOSED
        self._journal.close(code)
        for group in self.groups.values():
            for ticket, reply in group.abandon(code).replies:
                ticket.deliver(reply)

    def check_serving(self) -> None:
        if self.state is ShardState.LOADING:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.state is ShardState.CLOSED:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)


def _is_unused(group: Group) -> bool:
    """Whether an empty group without offsets can go: one that members are about to join stays."""
    return not (isinstance(group, ClassicGroup) and group.roster.pending)
