"""How far groups are behind: records, seconds, and the time until retention takes what is unread.

A round goes over all groups of this coordinator in slices, and rests longer the longer it took. A
partition that is read to its end costs a comparison; one that is not costs a search in the index
and a batch header, and nothing while the group stays where it is. `of_group` looks at one group at
once.

Seconds behind are the age of the first unread record. Headroom is the time until retention deletes
that record, at the earliest: by time from the age of its segment, by size from the rate at which
the partition grew lately; infinite where neither will, and zero where it has begun.

Only partitions that this broker leads are looked at. Memory is kept for the groups that have places
in the metrics, and the others are added up in `folded`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from millstream.broker.dead_letter import DeadLetters
from millstream.broker.ingress import IngressRates
from millstream.broker.label_budget import LabelBudget
from millstream.broker.metrics import OTHER
from millstream.env.clock import Clock
from millstream.groups.classic import ClassicGroup
from millstream.groups.consumer import ConsumerGroup
from millstream.groups.group import Group
from millstream.groups.offset import GroupOffsets
from millstream.groups.shards import Shards
from millstream.log import backlog
from millstream.log.backlog import Unread
from millstream.model.error import BrokerError
from millstream.model.topic import TopicId, TopicPartition
from millstream.replication.partition import Partition
from millstream.replication.replica import Replicas

_log = logging.getLogger(__name__)

#: Committed offsets, and partitions' rates, looked at between two turns of the loop.
_OFFSETS_PER_TURN: Final = 50
_PARTITIONS_PER_TURN: Final = 1000
#: Logs that must be loaded for it: each is a handful of system calls.
_LOADS_PER_TURN: Final = 8
_LOAD_PAUSE_S: Final = 0.02
#: Rounds take at most this part of the time.
_SHARE: Final = 0.05

UNLIMITED: Final = math.inf

#: Topic id, partition and offset.
_Position: TypeAlias = tuple[TopicId, int, int]


class PartitionLag(NamedTuple):
    """How far a group is behind in one partition."""

    topic: str
    partition: int
    committed_offset: int
    end_offset: int
    records: int
    #: None where the records have no time, or the log can't be read.
    seconds: float | None
    #: None where the log can't be read.
    headroom_seconds: float | None


@dataclass(slots=True)
class GroupLag:
    """A group, or several added up."""

    group_id: str
    state: str = ""
    members: int = 0
    partitions: list[PartitionLag] = field(default_factory=list)
    records: int = 0
    records_max: int = 0
    seconds_max: float = 0.0
    headroom_seconds_min: float = UNLIMITED

    def add(self, row: PartitionLag) -> None:
        self.partitions.append(row)
        self.records += row.records
        self.records_max = max(self.records_max, row.records)
        self.seconds_max = max(self.seconds_max, row.seconds or 0.0)
        if row.headroom_seconds is not None:
            self.headroom_seconds_min = min(self.headroom_seconds_min, row.headroom_seconds)

    def fold(self, other: GroupLag) -> None:
        """Add another group, without its partitions."""
        self.members += other.members
        self.records += other.records
        self.records_max = max(self.records_max, other.records_max)
        self.seconds_max = max(self.seconds_max, other.seconds_max)
        self.headroom_seconds_min = min(self.headroom_seconds_min, other.headroom_seconds_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOptions:
    interval_ms: int = 15_000
    groups_max: int = 1000
    partitions_max: int = 2000


@dataclass(slots=True)
class LagStats:
    rounds: int = 0
    failures: int = 0
    #: Of the last round, as the clock on the wall saw it.
    duration_seconds: float = 0.0


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
    #: When the first unread records were written, for the next round.
    unread: dict[_Position, Unread] = field(default_factory=dict)


class LagCollector:
    """See the module's text. Event loop only."""

    __slots__ = (
        "_clock",
        "_group_budget",
        "_loads",
        "_looks",
        "_options",
        "_partition_budget",
        "_replicas",
        "_shards",
        "_task",
        "_unreadable",
        "dead_letters",
        "last",
        "rates",
        "stats",
    )

    def __init__(
        self, replicas: Replicas, shards: Shards, clock: Clock, options: LagOptions
    ) -> None:
        self._replicas = replicas
        self._shards = shards
        self._clock = clock
        self._options = options
        self._group_budget = LabelBudget(options.groups_max)
        self._partition_budget = LabelBudget(options.partitions_max)
        self._task: asyncio.Task[None] | None = None
        #: Offsets looked at, and logs loaded for it, since the loop last had its turn.
        self._looks = self._loads = 0
        #: Partitions of which was said that they can't be read.
        self._unreadable: set[TopicPartition] = set()
        self.rates = IngressRates()
        self.dead_letters = DeadLetters(replicas, clock)
        self.stats = LagStats()
        #: The last round that was finished.
        self.last = LagRound()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._collect_regularly())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _collect_regularly(self) -> None:
        while True:
            try:
                await self.collect()
            except Exception:  # noqa: BLE001  # logged; the next round may do better
                self.stats.failures += 1
                _log.exception("the lag of groups can't be found")
            rest_s = self.stats.duration_seconds / _SHARE
            await asyncio.sleep(max(self._options.interval_ms / 1000, rest_s))

    # Rounds

    async def collect(self) -> LagRound:
        """Look at all groups now, giving way to other work in between."""
        started_at = self._clock.monotonic()
        await self._look_at_rates()
        await self.dead_letters.look()
        found = LagRound()
        for group, offsets in self._groups():
            self._place(await self._lag_of(group, offsets, found.unread), found)
        self._group_budget.end_round()
        self._partition_budget.end_round()
        self.last = found
        self.stats.rounds += 1
        self.stats.duration_seconds = self._clock.monotonic() - started_at
        return found

    async def _look_at_rates(self) -> None:
        for number, partition in enumerate(list(self._replicas), 1):
            self.rates.look(partition.log, self._clock.monotonic())
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.rates.forget_others(lambda key: self._replicas.get(*key) is not None)

    def _groups(self) -> Iterator[tuple[Group, GroupOffsets | None]]:
        """Groups that have members or offsets. Others may come and go while this is read."""
        for shard in self._shards.serving():
            for group_id in list(shard.groups):
                group, offsets = shard.groups.get(group_id), shard.offsets.get(group_id)
                if group is not None and (offsets or not group.is_empty):
                    yield group, offsets

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
        """The lag of one group as of now. Raises as `Shards.of` does."""
        shard = self._shards.of(group_id)
        group = shard.groups.get(group_id)
        return None if group is None else await self._lag_of(group, shard.offsets.get(group_id), {})

    async def _lag_of(
        self, group: Group, offsets: GroupOffsets | None, unread: dict[_Position, Unread]
    ) -> GroupLag:
        lag = GroupLag(group.group_id, group.state_name, _member_count(group))
        for topic, number, committed in list(offsets or ()):
            partition = self._replicas.get(topic, number)
            if partition is not None and partition.is_leader:
                lag.add(self._partition_lag(partition, committed.offset, unread))
            await self._give_way()
        if offsets is None:
            await self._give_way()
        return lag

    async def _give_way(self) -> None:
        self._looks += 1
        if self._loads >= _LOADS_PER_TURN:
            self._looks = self._loads = 0
            await asyncio.sleep(_LOAD_PAUSE_S)
        elif self._looks >= _OFFSETS_PER_TURN:
            self._looks = 0
            await asyncio.sleep(0)

    def _partition_lag(
        self, partition: Partition, committed: int, unread: dict[_Position, Unread]
    ) -> PartitionLag:
        log = partition.log
        end = partition.high_watermark
        offset = max(committed, log.log_start_offset)
        row = PartitionLag(*partition.topic_partition, committed, end, 0, 0.0, UNLIMITED)
        if offset >= end:
            return row
        was_loaded = log.is_loaded
        try:
            # Transactions that are open hold back what follows them.
            end = partition.last_stable_offset
            row = row._replace(end_offset=end)
            first = self._first_unread(partition, offset, end, unread) if offset < end else None
            if first is None:
                return row
            headroom = 0.0 if committed < offset else self._headroom(partition, offset)
        except (BrokerError, OSError) as error:
            self._failed(partition, error)
            return row._replace(records=end - offset, seconds=None, headroom_seconds=None)
        finally:
            if not was_loaded:
                self._loads += 1
                log.unload()
        self._unreadable.discard(partition.topic_partition)
        seconds = None
        if first.timestamp_ms is not None:
            seconds = max(self._clock.wall_ms() - first.timestamp_ms, 0) / 1000
        return row._replace(records=end - offset, seconds=seconds, headroom_seconds=headroom)

    def _failed(self, partition: Partition, error: Exception) -> None:
        self.stats.failures += 1
        if partition.topic_partition not in self._unreadable:
            # Once, and not at every look of every group.
            self._unreadable.add(partition.topic_partition)
            _log.error("the lag in %s can't be found: %s", partition.topic_partition, error)

    def _first_unread(
        self, partition: Partition, offset: int, end: int, unread: dict[_Position, Unread]
    ) -> Unread | None:
        """Remembered while a group stays where it is: what it has not read may be cold. Not where
        compaction may take the record away."""
        log = partition.log
        position = (log.topic_id, log.topic_partition.partition, offset)
        first = unread.get(position) or self.last.unread.get(position)
        if first is None or "compact" in log.config.cleanup_policy:
            first = backlog.first_unread(log, offset, end)
        if first is not None and first.timestamp_ms is not None:
            unread[position] = first
        return first

    def _headroom(self, partition: Partition, offset: int) -> float:
        left = backlog.retained(partition.log, offset)
        headroom = UNLIMITED
        if left.until_ms is not None:
            headroom = (left.until_ms - self._clock.wall_ms()) / 1000
        if left.bytes_left is not None:
            rate = self.rates.bytes_per_second(partition.topic_partition)
            if rate > 0:
                headroom = min(headroom, left.bytes_left / rate)
        return max(headroom, 0.0)


def _member_count(group: Group) -> int:
    if isinstance(group, ClassicGroup):
        return len(group.roster.members)
    return len(group.state.members) if isinstance(group, ConsumerGroup) else 0
