"""All shards of one coordinator on this broker: which there are, when they are loaded, and how time
passes in them.

Follows the cluster's metadata: a partition of the coordinator's topic that this broker comes to
lead is loaded, and one that it no longer leads, or may no longer, is closed. Shards are loaded one
after the other by one task, in slices; an empty one is ready at once. One heap of timers and one
timer of the loop serve all that live in them.

A partition is loaded once all that it holds is committed. Before that this broker can't know what
of it the coordinator before had told its clients, nor whether it will last.

What a shard holds, and what else goes on in the background, is the subclass's.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import inf
from typing import ClassVar, Final, Generic, TypeVar

from millstream.coordination import loader
from millstream.coordination.effects import TimerKey
from millstream.coordination.journal import Journal, JournalOptions
from millstream.coordination.key_partition import partition_of
from millstream.coordination.shard import CoordinatorShard, LedPartition, ShardState, ShardTimer
from millstream.coordination.timer import TimerHeap
from millstream.env.clock import Clock
from millstream.env.supervisor import SupervisedTask, Supervisor, Work
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackKind
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas

_logger = logging.getLogger(__name__)

#: Timers carried out between two turns of the loop.
_TIMERS_PER_TURN: Final = 100
#: Rest before a partition whose log can't be read is tried again.
_LOAD_RETRY_S: Final = 5.0
#: A partition that can't be written twice in this time rests before it is loaded once more.
_RELOADS_APART_S: Final = 5.0
_RELOAD_REST_S: Final = 1.0
#: Timers that are called later than this were held up by the process itself. Requests are read for
#: `_STALL_REST_MS` before they are carried out.
_STALL_MS: Final = 250
_STALL_REST_MS: Final = 100
#: Rest before a timer that raised is carried out again.
_TIMER_RETRY_MS: Final = 5000

S = TypeVar("S", bound=CoordinatorShard)


class CoordinatorShards(ABC, Generic[S]):
    """See the module's text. Event loop only."""

    __slots__ = (
        "_clock",
        "_failed_at",
        "_has_rested",
        "_is_stopped",
        "_loads",
        "_partition_count",
        "_replicas",
        "_shards",
        "_started_ms",
        "_supervisor",
        "_tasks",
        "_timers",
        "_wake",
        "_wake_ms",
    )

    #: The topic whose partitions are the shards.
    topic: ClassVar[str]
    #: What lives in them, as the names of tasks say it.
    kind: ClassVar[str]

    def __init__(self, replicas: Replicas, clock: Clock, supervisor: Supervisor) -> None:
        self._replicas = replicas
        self._clock = clock
        self._supervisor = supervisor
        self._shards: dict[int, S] = {}
        self._partition_count = 0
        self._timers: TimerHeap[ShardTimer] = TimerHeap()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = 0
        #: Whether the timers that are due have been put off because the process stood still.
        self._has_rested = False
        #: Makes times of the wall clock that do not jump out of a monotonic one.
        self._started_ms = clock.wall_ms() - int(clock.monotonic() * 1000)
        #: Shards to load, and the tasks that work in the background.
        self._loads: asyncio.Queue[S] = asyncio.Queue()
        self._tasks: list[SupervisedTask] = []
        #: When a partition could last not be written or read, by the monotonic clock.
        self._failed_at: dict[int, float] = {}
        self._is_stopped = False

    # For the subclass

    @abstractmethod
    def _make(self, led: LedPartition) -> S:
        """Return a new shard, which is LOADING."""

    @abstractmethod
    def _expire_timer(self, shard: S, owner: str, key: TimerKey) -> None: ...

    @abstractmethod
    def _background(self) -> dict[str, Work]:
        """What else goes on while the broker runs, by the name of its task."""

    @property
    @abstractmethod
    def _journal_options(self) -> JournalOptions: ...

    @property
    @abstractmethod
    def _load_bytes(self) -> int:
        """Read at a time when a partition is loaded."""

    # Its life

    def start(self, image: ClusterImage) -> None:
        """Begin to load what this broker leads. Metadata that comes later goes to `apply_delta`."""
        work = {f"{self.kind}-loader": self._load_all, **self._background()}
        self._tasks = [self._supervisor.start(name, each) for name, each in work.items()]
        self.match_leadership(image)

    async def stop(self) -> None:
        """Fail all open replies, and end the background work."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await task.ended()
        for index in list(self._shards):
            self._close(index, ErrorCode.NOT_COORDINATOR)
        if self._wake is not None:
            self._wake.cancel()

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The metadata changed. Called after the replicas have followed it."""
        touched = [*delta.created, *delta.deleted, *(new for _, new in delta.changed)]
        if any(topic.name == self.topic for topic in touched):
            self.match_leadership(image)

    def match_leadership(self, image: ClusterImage) -> None:
        """Have a shard for each partition led here, loaded in the epoch that it is led in. Called
        after the replicas were told what to lead."""
        if self._is_stopped:
            return
        topic = image.topic(self.topic)
        self._partition_count = 0 if topic is None else len(topic.partitions)
        led: dict[int, Partition] = {}
        for index in range(self._partition_count):
            partition = self._replicas.get(self.topic, index)
            if partition is not None and partition.is_leader:
                led[index] = partition
        for index, shard in list(self._shards.items()):
            if index not in led or led[index].leader_epoch != shard.leader_epoch:
                self._close(index, ErrorCode.NOT_COORDINATOR)
        failures = self._replicas.failures
        for index, partition in led.items():
            if index not in self._shards:
                about = f"partition {index} of {self.topic} opens"
                failures.run(CallbackKind.SHARD, about, self._open, index, partition)

    def _open(self, index: int, partition: Partition, rest_s: float = 0.0) -> None:
        journal = Journal(
            partition,
            self._clock,
            self._journal_options,
            lambda: self._reopen(shard, partition),
        )
        shard = self._make(LedPartition(index, partition.leader_epoch, journal))
        self._shards[index] = shard
        end_offset = partition.log.log_end_offset
        if rest_s:
            loop = asyncio.get_running_loop()
            loop.call_later(rest_s, self._load_when_committed, shard, partition, end_offset)
        else:
            self._load_when_committed(shard, partition, end_offset)

    def _load_when_committed(self, shard: S, partition: Partition, end_offset: int) -> None:
        if self._shards.get(shard.index) is not shard:
            return
        if partition.high_watermark < end_offset:
            # Also called back when too few replicas are left, or none follows this one any more.
            partition.when_acknowledged(
                end_offset,
                lambda: self._load_when_committed(shard, partition, end_offset),
                None,
                acks_all=True,
            )
        elif partition.log.log_start_offset == end_offset:
            try:
                shard.open(self.now_ms)
            except Exception as error:  # noqa: BLE001  # logged and counted; tried again
                about = f"partition {shard.index} of {self.topic} opens"
                self._replicas.failures.note(CallbackKind.SHARD, error, about)
                asyncio.get_running_loop().call_later(_LOAD_RETRY_S, self._retry, shard)
        else:
            self._loads.put_nowait(shard)

    def _reopen(self, shard: S, partition: Partition) -> None:
        """Memory is ahead of the log, or the log can't be read: what the log says holds."""
        index = shard.index
        if self._shards.get(index) is not shard:
            return
        self._close(index, ErrorCode.NOT_COORDINATOR)
        if partition.is_leader and not self._is_stopped:
            now = self._clock.monotonic()
            is_repeated = now - self._failed_at.get(index, -inf) < _RELOADS_APART_S
            self._failed_at[index] = now
            self._open(index, partition, _RELOAD_REST_S if is_repeated else 0.0)

    def _close(self, index: int, code: ErrorCode) -> None:
        shard = self._shards.pop(index)
        self._timers.cancel_where(lambda key: key[0] == index)
        about = f"partition {index} of {self.topic} closes"
        self._replicas.failures.run(CallbackKind.SHARD, about, shard.close, code)

    # Loading

    async def _load_all(self) -> None:
        while True:
            shard = await self._loads.get()
            try:
                await self._load(shard)
            except Exception:  # logged; others must not wait for it
                _logger.exception("partition %d of %s can't be loaded", shard.index, self.topic)
                loop = asyncio.get_running_loop()
                loop.call_later(_LOAD_RETRY_S, self._retry, shard)

    async def _load(self, shard: S) -> None:
        partition = self._replicas.get(self.topic, shard.index)
        if partition is None or shard.state is not ShardState.LOADING:
            return
        started_at = self._clock.monotonic()
        count = await loader.load(shard, partition, self._load_bytes)
        if shard.state is ShardState.LOADING:
            shard.open(self.now_ms)
            _logger.info(
                "loaded partition %d of %s: %d records in %.2f s",
                shard.index,
                self.topic,
                count,
                self._clock.monotonic() - started_at,
            )

    def _retry(self, shard: S) -> None:
        partition = self._replicas.get(self.topic, shard.index)
        if partition is not None:
            self._reopen(shard, partition)

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
        self._wake = asyncio.get_running_loop().call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._wake = None
        now_ms = self.now_ms
        if now_ms - self._wake_ms > _STALL_MS and not self._has_rested:
            # The process stood still, and heartbeats that came meanwhile were not read: the event
            # loop calls timers first. Nobody loses a session for that.
            self._has_rested = True
            self._wake_at(now_ms + _STALL_REST_MS)
            return
        self._has_rested = False
        self._carry_out_timers()

    def _carry_out_timers(self) -> None:
        self._wake = None
        now_ms = self.now_ms
        for _ in range(_TIMERS_PER_TURN):
            # One at a time: each may cancel or move those after it.
            timer = self._timers.pop_due(now_ms)
            if timer is None:
                break
            self._carry_out(timer)
        # More may have been set meanwhile; the earliest of all is what matters.
        next_ms = self._timers.next_ms()
        if next_ms is not None:
            self._wake_at(next_ms)

    def _carry_out(self, timer: ShardTimer) -> None:
        index, owner, key = timer
        shard = self._shards.get(index)
        if shard is None or shard.state is not ShardState.ACTIVE:
            return
        try:
            self._expire_timer(shard, owner, key)
        except Exception as error:  # noqa: BLE001  # reported; other timers go on
            about = f"{key} of {owner!r} in partition {index} of {self.topic}"
            self._replicas.failures.note(CallbackKind.TIMER, error, about)
            # Without it a member that is gone, or an open transaction, would stay for ever.
            if shard.state is ShardState.ACTIVE and timer not in self._timers:
                self._timers.set(timer, self.now_ms + _TIMER_RETRY_MS)

    # Finding shards

    def of(self, key: str) -> S:
        """The shard that serves a key; NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        return self.at(self.index_of(key))

    def index_of(self, key: str) -> int:
        """The partition that a key lives in; NOT_COORDINATOR while there is no topic."""
        if not self._partition_count:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        return partition_of(key, self._partition_count)

    def at(self, index: int) -> S:
        """The shard of one partition; raises as `of` does."""
        shard = self._shards.get(index)
        if shard is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        shard.check_serving()
        return shard

    def all(self) -> Iterator[S]:
        """Every shard here. COORDINATOR_LOAD_IN_PROGRESS while one of them is not loaded."""
        for shard in self._shards.values():
            shard.check_serving()
        yield from list(self._shards.values())
