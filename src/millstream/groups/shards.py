"""All shards of this broker: which there are, when they are loaded, and how time passes in them.

Follows the cluster's metadata: a partition of `__consumer_offsets` that this broker comes to lead
is loaded, one that it no longer leads is closed, and offsets of deleted topics go. Shards are
loaded one after the other by one task, in slices; an empty one is ready at once. One heap of timers
and one timer of the loop serve all groups, and one task drops expired offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from millstream.env.clock import Clock
from millstream.env.random import Random
from millstream.groups import loader
from millstream.groups.consumer import ConsumerSettings
from millstream.groups.group import Group
from millstream.groups.journal import Journal, JournalOptions
from millstream.groups.placement import OFFSETS_TOPIC, partition_of
from millstream.groups.shard import GroupSettings, Shard, ShardState, ShardTimer
from millstream.groups.timer import TimerHeap
from millstream.groups.topic_view import ImageTopicView, TopicView
from millstream.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.partition import Partition
from millstream.replication.replica import Replicas

_log = logging.getLogger(__name__)

#: Timers carried out, and groups looked at for expiry, between two turns of the loop.
_TIMERS_PER_TURN: Final = 100
_GROUPS_PER_TURN: Final = 200
#: Rest before a partition whose log can't be read is tried again.
_LOAD_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What the broker's settings say about groups."""

    session_timeout_ms_min: int = 6000
    session_timeout_ms_max: int = 1_800_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_check_interval_ms: int = 600_000
    #: Read at a time when a partition is loaded.
    load_bytes: int = 1024 * 1024
    groups: GroupSettings = field(default_factory=GroupSettings)
    journal: JournalOptions = field(default_factory=JournalOptions)


class Shards:
    """See the module's text. Event loop only."""

    __slots__ = (
        "_clock",
        "_is_stopped",
        "_loads",
        "_partition_count",
        "_random",
        "_replicas",
        "_shards",
        "_started_ms",
        "_tasks",
        "_timers",
        "_wake",
        "_wake_ms",
        "options",
        "topics",
    )

    def __init__(
        self, replicas: Replicas, clock: Clock, random: Random, options: CoordinatorOptions
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._random = random
        #: Replaced by `configure`; groups whose own settings did not change keep what they have.
        self.options = options
        self._shards: dict[int, Shard] = {}
        self._partition_count = 0
        #: The topics as the last image has them.
        self.topics: TopicView = ImageTopicView(EMPTY_IMAGE)
        self._timers: TimerHeap[ShardTimer] = TimerHeap()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = 0
        #: Makes times of the wall clock that do not jump out of a monotonic one.
        self._started_ms = clock.wall_ms() - int(clock.monotonic() * 1000)
        #: Shards to load, and the tasks that work in the background.
        self._loads: asyncio.Queue[Shard] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopped = False

    # Its life

    def start(self, image: ClusterImage) -> None:
        """Begin to load what this broker leads. Metadata that comes later goes to `follow`."""
        self._tasks = [
            asyncio.create_task(self._load_all()),
            asyncio.create_task(self._expire_regularly()),
        ]
        self.topics = ImageTopicView(image)
        self._match(image)

    async def stop(self) -> None:
        """Answer everybody who waits, and end the background work."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for index in list(self._shards):
            self._close(index, ErrorCode.NOT_COORDINATOR)
        if self._wake is not None:
            self._wake.cancel()

    def follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The metadata changed. Called after the replicas have followed it."""
        if self._is_stopped:
            return
        self.topics = ImageTopicView(image)
        for topic in delta.deleted:
            for shard in self._shards.values():
                if shard.state is ShardState.ACTIVE:
                    shard.forget_topic(topic.name)
        touched = [*delta.created, *delta.deleted, *(new for _, new in delta.changed)]
        if any(topic.name == OFFSETS_TOPIC for topic in touched):
            self._match(image)

    def configure(self, changes: Mapping[str, ConsumerSettings | None]) -> None:
        """These groups have other settings of their own now; None: none any more."""
        own = self.options.groups.own.mutate()
        for group_id, settings in changes.items():
            if settings is None:
                own.pop(group_id, None)
            else:
                own[group_id] = settings
        groups = replace(self.options.groups, own=own.finish())
        self.options = replace(self.options, groups=groups)
        for shard in self._shards.values():
            shard.configure(groups, changes)

    def _match(self, image: ClusterImage) -> None:
        """Have a shard for each partition led here, loaded in the epoch that it is led in."""
        topic = image.topic(OFFSETS_TOPIC)
        self._partition_count = 0 if topic is None else len(topic.partitions)
        led: dict[int, Partition] = {}
        for index in range(self._partition_count):
            partition = self._replicas.get(OFFSETS_TOPIC, index)
            if partition is not None and partition.is_leader:
                led[index] = partition
        for index, shard in list(self._shards.items()):
            if index not in led or led[index].leader_epoch != shard.leader_epoch:
                self._close(index, ErrorCode.NOT_COORDINATOR)
        for index, partition in led.items():
            if index not in self._shards:
                self._open(index, partition)

    def _open(self, index: int, partition: Partition) -> None:
        journal = Journal(
            partition,
            self._clock,
            self.options.journal,
            lambda: self._reopen(shard, partition),
        )
        shard = Shard(
            index,
            partition.leader_epoch,
            self.options.groups,
            self._random,
            journal,
            self._set_timer,
        )
        self._shards[index] = shard
        if partition.log.log_start_offset == partition.log.log_end_offset:
            shard.open(self.now_ms)
        else:
            self._loads.put_nowait(shard)

    def _reopen(self, shard: Shard, partition: Partition) -> None:
        """Memory is ahead of the log: what the log says holds."""
        if self._shards.get(shard.index) is shard:
            self._close(shard.index, ErrorCode.NOT_COORDINATOR)
            if partition.is_leader and not self._is_stopped:
                self._open(shard.index, partition)

    def _close(self, index: int, code: ErrorCode) -> None:
        shard = self._shards.pop(index)
        self._timers.cancel_where(lambda key: key[0] == index)
        shard.close(code)

    # Background work

    async def _load_all(self) -> None:
        while True:
            shard = await self._loads.get()
            try:
                await self._load(shard)
            except Exception:  # noqa: BLE001  # logged; others must not wait for it
                _log.exception("group partition %d can't be loaded", shard.index)
                loop = asyncio.get_running_loop()
                loop.call_later(_LOAD_RETRY_S, self._retry, shard)

    async def _load(self, shard: Shard) -> None:
        partition = self._replicas.get(OFFSETS_TOPIC, shard.index)
        if partition is None or shard.state is not ShardState.LOADING:
            return
        started_at = self._clock.monotonic()
        count = await loader.load(shard, partition, self.options.load_bytes)
        if shard.state is ShardState.LOADING:
            shard.open(self.now_ms)
            _log.info(
                "loaded group partition %d: %d groups from %d records in %.2f s",
                shard.index,
                len(shard.groups),
                count,
                self._clock.monotonic() - started_at,
            )

    def _retry(self, shard: Shard) -> None:
        partition = self._replicas.get(OFFSETS_TOPIC, shard.index)
        if partition is not None:
            self._reopen(shard, partition)

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.options.offsets_check_interval_ms / 1000)
            await self.expire_offsets()

    async def expire_offsets(self) -> int:
        """Drop offsets past their retention, and empty groups that have none left; how many."""
        count = looked_at = 0
        for shard in list(self._shards.values()):
            for group_id in list(shard.groups):
                if shard.state is not ShardState.ACTIVE:
                    break
                retention_ms = self.options.offsets_retention_ms
                count += shard.expire_offsets(self.now_ms, retention_ms, group_id)
                looked_at += 1
                if looked_at % _GROUPS_PER_TURN == 0:
                    await asyncio.sleep(0)
        if count:
            _log.info("%d committed offsets expired", count)
        return count

    # Time

    @property
    def now_ms(self) -> int:
        return self._started_ms + int(self._clock.monotonic() * 1000)

    def _set_timer(self, key: ShardTimer, due_ms: int | None) -> None:
        if due_ms is None:
            self._timers.cancel(key)
            return
        self._timers.set(key, due_ms)
        if self._wake is None or due_ms < self._wake_ms:
            self._wake_at(due_ms)

    def _wake_at(self, due_ms: int) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake_ms = due_ms
        # One more, as `now_ms` is rounded down and must have reached it by then.
        delay_s = max(due_ms + 1 - self.now_ms, 0) / 1000
        self._wake = asyncio.get_running_loop().call_later(delay_s, self._carry_out_timers)

    def _carry_out_timers(self) -> None:
        self._wake = None
        now_ms = self.now_ms
        for index, group_id, key in self._timers.pop_due(now_ms, _TIMERS_PER_TURN):
            shard = self._shards.get(index)
            if shard is not None and shard.state is ShardState.ACTIVE:
                shard.expire_timer(now_ms, group_id, key, self.topics)
        # Groups may have set timers meanwhile; the earliest of all is what matters.
        next_ms = self._timers.next_ms()
        if next_ms is not None:
            self._wake_at(next_ms)

    # Finding groups

    def of(self, group_id: str) -> Shard:
        """The shard that serves a group; NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        shard = None
        if self._partition_count:
            shard = self._shards.get(partition_of(group_id, self._partition_count))
        if shard is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        shard.check_serving()
        return shard

    def serving(self) -> list[Shard]:
        """Those whose groups are served now."""
        return [shard for shard in self._shards.values() if shard.state is ShardState.ACTIVE]

    def all_groups(self) -> Iterator[Group]:
        """Every group here. COORDINATOR_LOAD_IN_PROGRESS while that can't be told."""
        for shard in self._shards.values():
            shard.check_serving()
        for shard in self._shards.values():
            yield from shard.groups.values()
