"""The lag of groups: records, seconds, and the time until retention deletes unread records.

A round covers all groups that this broker coordinates, in slices (`LagSweep`), and pauses longer
the longer it took. The next round begins early if coordinators have moved. `of_group` measures one
group at once.

A group's coordinator reports all of its partitions, and queries their leaders on other brokers. So
each committed partition has one row in the whole cluster. A group is shown only while this broker
coordinates it: `shown` drops groups that another broker coordinates by now.

Lag in seconds is the age of the first unread record. Headroom is the time until retention deletes
that record, at the earliest.

Rows are kept for the groups within the label budget. All other groups are summed up in `folded`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.broker.lag.lag_sweep import LagMemory, LagSources, LagSweep, PartitionLag
from millstream.broker.lag.partition_backlog import UNLIMITED
from millstream.broker.metrics.broker_metrics import OTHER
from millstream.broker.metrics.dead_letter_gauges import DeadLetters
from millstream.broker.metrics.growth_rate import GrowthRates
from millstream.broker.metrics.label_budget import LabelBudget
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.groups.group import Group
from millstream.groups.group_shard import GroupShard
from millstream.groups.group_shards import GroupShards
from millstream.groups.offset import GroupOffsets

#: Rounds take at most this share of the time.
_SHARE: Final = 0.05
#: Time between checks whether coordinators have moved.
_MOVE_POLL_S: Final = 0.5


@dataclass(slots=True)
class GroupLag:
    """The lag of a group, or of several summed up. Unknown values count as zero."""

    group_id: str
    state: str = ""
    members: int = 0
    #: The partition of the offsets topic that holds the group.
    shard: int = -1
    partitions: list[PartitionLag] = field(default_factory=list)
    records: int = 0
    records_max: int = 0
    seconds_max: float = 0.0
    headroom_seconds_min: float = UNLIMITED
    #: Partitions whose leader did not respond.
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
    #: Rounds that failed.
    failures: int = 0
    #: Duration of the last round.
    duration_seconds: float = 0.0
    #: The part of it spent waiting for leaders on other brokers.
    waited_seconds: float = 0.0


@dataclass(slots=True)
class LagRound:
    """The results of one round."""

    #: Groups within the budget, in round order; `partitions` is empty where those did not fit.
    groups: list[GroupLag] = field(default_factory=list)
    #: The sum of all other groups; None if there are none.
    folded: GroupLag | None = None
    folded_groups: int = 0
    folded_partitions: int = 0
    #: Number of groups by state.
    states: Counter[str] = field(default_factory=Counter)
    #: For the next round.
    memory: LagMemory = field(default_factory=LagMemory)


class LagCollector:
    """Measures the lag of groups regularly. Event loop only."""

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
        #: The last complete round.
        self.last = LagRound()
        #: Fences this broker's coordinators if its lease may have expired.
        self.check_lease: Callable[[], None] = lambda: None

    @property
    def rates(self) -> GrowthRates:
        return self._sources.local.rates

    @property
    def failures(self) -> int:
        """Return the number of failed rounds and failed measurements."""
        return self.stats.failures + self._sources.local.failures

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
            # A slow or dead leader must not delay the next round. A position costs its leader
            # about as much as this broker, so the pause limits the load of leaders too.
            stats = self.stats
            pause_s = (stats.duration_seconds - stats.waited_seconds) / _SHARE
            await asyncio.sleep(pause_s)
            await self._until_due(self._options.interval_ms / 1000 - pause_s)

    async def _until_due(self, seconds_max: float) -> None:
        """Return after so many seconds, or as soon as this broker coordinates other groups: no
        other broker has rows of those."""
        clock = self._sources.clock
        due_at = clock.monotonic() + seconds_max
        while self._served() == self._swept:
            left_s = due_at - clock.monotonic()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, _MOVE_POLL_S))

    def _served(self) -> list[tuple[int, int]]:
        """Return the shards that are served now, each with its leader epoch."""
        return [(shard.index, shard.leader_epoch) for shard in self._shards.serving()]

    # Rounds

    async def collect(self) -> LagRound:
        """Measure all groups now, in slices that yield to the loop."""
        clock = self._sources.clock
        started_at = clock.monotonic()
        self._swept = self._served()
        await self._sources.local.sample_rates()
        await self.dead_letters.refresh()
        sweep = LagSweep(self._sources, self.last.memory)
        found = LagRound(memory=sweep.memory)
        #: Groups that do not have all of their rows yet.
        pending: list[GroupLag] = []
        for shard, group, offsets in self._groups():
            lag = _group_lag(shard, group)
            if await self._add_group(sweep, lag, offsets):
                self._report_all(pending, found)
            pending.append(lag)
        await sweep.finish()
        self._report_all(pending, found)
        self._group_budget.end_round()
        self._partition_budget.end_round()
        self.last = found
        self.stats.rounds += 1
        self.stats.duration_seconds = clock.monotonic() - started_at
        self.stats.waited_seconds = sweep.waited_seconds
        return found

    async def _add_group(
        self, sweep: LagSweep, lag: GroupLag, offsets: GroupOffsets | None
    ) -> bool:
        """Add all offsets of a group to the sweep. Return whether the groups before it have all of
        their rows."""
        is_delivered = False
        for topic, number, committed in list(offsets or ()):
            if await sweep.add(lag, topic, number, committed):
                is_delivered = True
        if offsets is None:
            await self._sources.local.pause_if_due()
        return is_delivered

    def _report_all(self, lags: list[GroupLag], found: LagRound) -> None:
        for lag in lags:
            self._report(lag, found)
        lags.clear()

    def _groups(self) -> Iterator[tuple[GroupShard, Group, GroupOffsets | None]]:
        """Yield groups that have members or offsets; groups may be added or deleted meanwhile."""
        for shard in self._shards.serving():
            for group_id in list(shard.groups):
                group, offsets = shard.groups.get(group_id), shard.offsets.get(group_id)
                if group is not None and (offsets or not group.is_empty):
                    yield shard, group, offsets

    def _report(self, lag: GroupLag, found: LagRound) -> None:
        """Show the group if the label budget allows, and sum it up with the others if not."""
        found.states[lag.state] += 1
        is_shown = self._group_budget.reserve(lag.group_id)
        if not is_shown or not self._partition_budget.reserve(lag.group_id, len(lag.partitions)):
            found.folded_partitions += len(lag.partitions)
            lag.partitions = []
        if is_shown:
            found.groups.append(lag)
            return
        if found.folded is None:
            found.folded = GroupLag(OTHER)
        found.folded.fold(lag)
        found.folded_groups += 1

    # One group

    async def of_group(self, group_id: str) -> GroupLag | None:
        """Measure one group now; None if it does not exist. Raises as `GroupShards.of` does."""
        shard = self._shards.of(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            return None
        lag = _group_lag(shard, group)
        sweep = LagSweep(self._sources, self.last.memory)
        await self._add_group(sweep, lag, shard.offsets.get(group_id))
        await sweep.finish()
        return lag


def _group_lag(shard: GroupShard, group: Group) -> GroupLag:
    return GroupLag(group.group_id, group.state_name, len(group.member_ids), shard.index)
