"""How far groups are behind: records, seconds, and the time until retention takes what is unread.

A round goes over all groups that this broker coordinates, in slices (`Sweep`), and rests longer the
longer it took. The next one begins early if coordinators have moved. `of_group` looks at one group
at once.

A group's coordinator reports all of its partitions, and asks their leaders on other brokers. So in
the whole cluster each committed partition has one row. What was found of a group is shown only
while this broker coordinates it: `shown` drops groups as soon as they are another broker's.

Seconds behind are the age of the first unread record. Headroom is the time until retention deletes
that record, at the earliest.

Memory is kept for the groups that have places in the metrics, and the others are added up in
`folded`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.broker.lag.lag_sweep import LagSources, Memory, PartitionLag, Sweep
from millstream.broker.lag.partition_backlog import UNLIMITED
from millstream.broker.metrics.broker_metrics import OTHER
from millstream.broker.metrics.dead_letter_gauges import DeadLetters
from millstream.broker.metrics.ingress import IngressRates
from millstream.broker.metrics.label_budget import LabelBudget
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.groups.group import Group
from millstream.groups.group_shard import GroupShard
from millstream.groups.group_shards import GroupShards
from millstream.groups.offset import GroupOffsets

#: Rounds take at most this part of the time.
_SHARE: Final = 0.05
#: Time between looks whether coordinators have moved.
_MOVE_LOOK_S: Final = 0.5


@dataclass(slots=True)
class GroupLag:
    """A group, or several added up. Partitions count as far as their lag is known."""

    group_id: str
    state: str = ""
    members: int = 0
    #: The partition of the offsets topic that the group lives in.
    shard: int = -1
    partitions: list[PartitionLag] = field(default_factory=list)
    records: int = 0
    records_max: int = 0
    seconds_max: float = 0.0
    headroom_seconds_min: float = UNLIMITED
    #: Partitions whose leader did not say how far the group is behind.
    unknown_partitions: int = 0

    def add(self, row: PartitionLag) -> None:
        self.partitions.append(row)
        self.records += row.records or 0
        self.records_max = max(self.records_max, row.records or 0)
        self.seconds_max = max(self.seconds_max, row.seconds or 0.0)
        if row.headroom_seconds is not None:
            self.headroom_seconds_min = min(self.headroom_seconds_min, row.headroom_seconds)
        self.unknown_partitions += not row.is_current

    def fold(self, other: GroupLag) -> None:
        """Add another group, without its partitions."""
        self.members += other.members
        self.records += other.records
        self.records_max = max(self.records_max, other.records_max)
        self.seconds_max = max(self.seconds_max, other.seconds_max)
        self.headroom_seconds_min = min(self.headroom_seconds_min, other.headroom_seconds_min)
        self.unknown_partitions += other.unknown_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOptions:
    interval_ms: int = 15_000
    groups_max: int = 1000
    partitions_max: int = 2000


@dataclass(slots=True)
class LagStats:
    rounds: int = 0
    #: Rounds that failed as a whole.
    failures: int = 0
    #: Of the last round, as the clock on the wall saw it.
    duration_seconds: float = 0.0
    #: The part of it that was spent on waiting for leaders on other brokers.
    waited_seconds: float = 0.0


@dataclass(slots=True)
class LagRound:
    """What one round found."""

    #: Groups with a place, in the order met; `partitions` is empty where those had no room.
    groups: list[GroupLag] = field(default_factory=list)
    #: All others; None if there are none.
    folded: GroupLag | None = None
    folded_groups: int = 0
    folded_partitions: int = 0
    #: How many groups are in each state.
    states: Counter[str] = field(default_factory=Counter)
    #: For the next round.
    memory: Memory = field(default_factory=Memory)


class LagCollector:
    """See the module's text. Event loop only."""

    __slots__ = (
        "_group_budget",
        "_options",
        "_partition_budget",
        "_shards",
        "_sources",
        "_swept",
        "_task",
        "check_lease",
        "dead_letters",
        "last",
        "stats",
    )

    def __init__(self, sources: LagSources, shards: GroupShards, options: LagOptions) -> None:
        self._sources = sources
        self._shards = shards
        self._options = options
        self._group_budget = LabelBudget(options.groups_max)
        self._partition_budget = LabelBudget(options.partitions_max)
        self._task: SupervisedTask | None = None
        #: The shards that the last round began with.
        self._swept: list[tuple[int, int]] = []
        self.dead_letters = DeadLetters(sources.replicas, sources.clock)
        self.stats = LagStats()
        #: The last round that was finished.
        self.last = LagRound()
        #: Stops this broker from coordinating anything if others may have replaced it.
        self.check_lease: Callable[[], None] = lambda: None

    @property
    def rates(self) -> IngressRates:
        return self._sources.here.rates

    @property
    def failures(self) -> int:
        """Rounds that failed, and looks at logs that can't be read."""
        return self.stats.failures + self._sources.here.failures

    def shown(self) -> list[GroupLag]:
        """Return the groups of the last round that this broker still coordinates."""
        self.check_lease()
        return [each for each in self.last.groups if self._shards.is_serving(each.shard)]

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start("group-lag", self._collect_regularly)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _collect_regularly(self) -> None:
        while True:
            try:
                await self.collect()
            except Exception:
                self.stats.failures += 1
                raise
            # A leader that is slow or dead must not delay the next round. What leaders do for a
            # position is about as much as what is done for it here, so the rest spares them too.
            stats = self.stats
            rest_s = (stats.duration_seconds - stats.waited_seconds) / _SHARE
            await asyncio.sleep(rest_s)
            await self._until_due(self._options.interval_ms / 1000 - rest_s)

    async def _until_due(self, seconds_max: float) -> None:
        """Return after so many seconds, or as soon as this broker coordinates other groups: their
        rows are in no other broker's metrics."""
        clock = self._sources.clock
        due_at = clock.monotonic() + seconds_max
        while self._served() == self._swept:
            left_s = due_at - clock.monotonic()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, _MOVE_LOOK_S))

    def _served(self) -> list[tuple[int, int]]:
        """Return the shards that are served now, each with its leader epoch."""
        return [(shard.index, shard.leader_epoch) for shard in self._shards.serving()]

    # Rounds

    async def collect(self) -> LagRound:
        """Look at all groups now, giving way to other work in between."""
        clock = self._sources.clock
        started_at = clock.monotonic()
        self._swept = self._served()
        await self._sources.here.look_at_rates()
        await self.dead_letters.look()
        sweep = Sweep(self._sources, self.last.memory)
        found = LagRound(memory=sweep.memory)
        #: Groups that wait for rows of the sweep.
        waiting: list[GroupLag] = []
        for shard, group, offsets in self._groups():
            lag = _group_lag(shard, group)
            if await self._look(sweep, lag, offsets):
                self._place_all(waiting, found)
            waiting.append(lag)
        await sweep.settle()
        self._place_all(waiting, found)
        self._group_budget.end_round()
        self._partition_budget.end_round()
        self.last = found
        self.stats.rounds += 1
        self.stats.duration_seconds = clock.monotonic() - started_at
        self.stats.waited_seconds = sweep.waited_seconds
        return found

    async def _look(self, sweep: Sweep, lag: GroupLag, offsets: GroupOffsets | None) -> bool:
        """Have the sweep look at all offsets of a group. Returns whether the groups before it have
        all of their rows."""
        is_settled = False
        for topic, number, committed in list(offsets or ()):
            if await sweep.look(lag, topic, number, committed):
                is_settled = True
        if offsets is None:
            await self._sources.here.give_way()
        return is_settled

    def _place_all(self, lags: list[GroupLag], found: LagRound) -> None:
        for lag in lags:
            self._place(lag, found)
        lags.clear()

    def _groups(self) -> Iterator[tuple[GroupShard, Group, GroupOffsets | None]]:
        """Groups that have members or offsets. Others may come and go while this is read."""
        for shard in self._shards.serving():
            for group_id in list(shard.groups):
                group, offsets = shard.groups.get(group_id), shard.offsets.get(group_id)
                if group is not None and (offsets or not group.is_empty):
                    yield shard, group, offsets

    def _place(self, lag: GroupLag, found: LagRound) -> None:
        found.states[lag.state] += 1
        has_place = self._group_budget.take(lag.group_id)
        if not has_place or not self._partition_budget.take(lag.group_id, len(lag.partitions)):
            found.folded_partitions += len(lag.partitions)
            lag.partitions = []
        if has_place:
            found.groups.append(lag)
            return
        if found.folded is None:
            found.folded = GroupLag(OTHER)
        found.folded.fold(lag)
        found.folded_groups += 1

    # One group

    async def of_group(self, group_id: str) -> GroupLag | None:
        """The lag of one group as of now. Raises as `GroupShards.of` does."""
        shard = self._shards.of(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            return None
        lag = _group_lag(shard, group)
        sweep = Sweep(self._sources, self.last.memory)
        await self._look(sweep, lag, shard.offsets.get(group_id))
        await sweep.settle()
        return lag


def _group_lag(shard: GroupShard, group: Group) -> GroupLag:
    return GroupLag(group.group_id, group.state_name, _member_count(group), shard.index)


def _member_count(group: Group) -> int:
    if isinstance(group, ClassicGroup):
        return len(group.roster.members)
    return len(group.state.members) if isinstance(group, ConsumerGroup) else 0
