"""All shards of one coordinator on this broker: opening, loading, closing, and timers.

When this broker becomes leader of a partition of the coordinator's topic, the shard is loaded; when
it loses the leadership, the shard is closed. One task loads the shards one after the other, in
slices; an empty shard is ready at once. One timer heap and one timer of the event loop serve all
shards.

A partition is loaded once all its records are committed. Before that this broker cannot know which
records the previous coordinator's responses depend on, or whether the records survive.

The subclass owns the contents of a shard and further background tasks.
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

#: Timers handled before the event loop runs other callbacks.
_TIMERS_PER_TURN: Final = 100
#: Delay before a partition whose log cannot be read is loaded again.
_LOAD_RETRY_S: Final = 5.0
#: If appends to a partition fail twice within this time, the second reload is delayed.
_RELOADS_APART_S: Final = 5.0
_RELOAD_DELAY_S: Final = 1.0
#: If the event loop calls the timers later than this, the process was stalled. Requests are then
#: read for `_STALL_DELAY_MS` before any timer expires.
_STALL_MS: Final = 250
_STALL_DELAY_MS: Final = 100
#: Delay before a timer whose handler raised is retried.
_TIMER_RETRY_MS: Final = 5000

S = TypeVar("S", bound=CoordinatorShard)


class CoordinatorShards(ABC, Generic[S]):
    """The shards of one coordinator. Event loop only."""

    __slots__ = (
        "_clock",
        "_failed_at",
        "_is_delayed",
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
    #: The kind of coordinator, as it appears in the names of tasks.
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
        #: Whether the timers that are due were already delayed after a stall.
        self._is_delayed = False
        #: Added to the monotonic clock: wall-clock times that do not jump.
        self._started_ms = clock.wall_ms() - int(clock.monotonic() * 1000)
        #: Shards to load, and the background tasks.
        self._loads: asyncio.Queue[S] = asyncio.Queue()
        self._tasks: list[SupervisedTask] = []
        #: Monotonic time of the last failed append or read, by partition.
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
        """Return further background tasks by name."""

    @property
    @abstractmethod
    def _journal_options(self) -> JournalOptions: ...

    @property
    @abstractmethod
    def _load_bytes(self) -> int:
        """Bytes per read while a partition is loaded."""

    # Lifetime

    def start(self, image: ClusterImage) -> None:
        """Start the background tasks, and load the partitions that this broker leads."""
        work = {f"{self.kind}-loader": self._load_all, **self._background()}
        self._tasks = [self._supervisor.start(name, each) for name, each in work.items()]
        self.match_leadership(image)

    async def stop(self) -> None:
        """Fail all pending replies, and stop the background tasks."""
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
        """Apply a metadata change, after the replicas have applied it."""
        touched = [*delta.created, *delta.deleted, *(new for _, new in delta.changed)]
        if any(topic.name == self.topic for topic in touched):
            self.match_leadership(image)

    def match_leadership(self, image: ClusterImage) -> None:
        """Open and close shards so that there is one for each led partition and leader epoch.
        Called after the replicas have applied the image."""
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

    def _open(self, index: int, partition: Partition, delay_s: float = 0.0) -> None:
        journal = Journal(
            partition,
            self._clock,
            self._journal_options,
            lambda: self._reopen(shard, partition),
        )
        shard = self._make(LedPartition(index, partition.leader_epoch, journal))
        self._shards[index] = shard
        end_offset = partition.log.log_end_offset
        if delay_s:
            loop = asyncio.get_running_loop()
            loop.call_later(delay_s, self._load_when_committed, shard, partition, end_offset)
        else:
            self._load_when_committed(shard, partition, end_offset)

    def _load_when_committed(self, shard: S, partition: Partition, end_offset: int) -> None:
        if self._shards.get(shard.index) is not shard:
            return
        if partition.high_watermark < end_offset:
            # The callback also runs if the ISR is too small or this broker loses leadership.
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
        """Reload a shard whose state is ahead of the log, or whose log could not be read."""
        index = shard.index
        if self._shards.get(index) is not shard:
            return
        self._close(index, ErrorCode.NOT_COORDINATOR)
        if partition.is_leader and not self._is_stopped:
            now = self._clock.monotonic()
            is_repeated = now - self._failed_at.get(index, -inf) < _RELOADS_APART_S
            self._failed_at[index] = now
            self._open(index, partition, _RELOAD_DELAY_S if is_repeated else 0.0)

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
                _logger.exception("loading partition %d of %s failed", shard.index, self.topic)
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
        # One millisecond more, because `now_ms` is rounded down.
        delay_s = max(due_ms + 1 - self.now_ms, 0) / 1000
        self._wake = asyncio.get_running_loop().call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._wake = None
        now_ms = self.now_ms
        if now_ms - self._wake_ms > _STALL_MS and not self._is_delayed:
            # The process was stalled. Heartbeats may have arrived that are not read yet, because
            # the event loop calls timers first. No session may expire for that.
            self._is_delayed = True
            self._wake_at(now_ms + _STALL_DELAY_MS)
            return
        self._is_delayed = False
        self._carry_out_timers()

    def _carry_out_timers(self) -> None:
        self._wake = None
        now_ms = self.now_ms
        for _ in range(_TIMERS_PER_TURN):
            # One at a time: a timer may cancel or move later ones.
            timer = self._timers.pop_due(now_ms)
            if timer is None:
                break
            self._carry_out(timer)
        # Handlers may have set more timers, so look up the earliest again.
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
        except Exception as error:  # noqa: BLE001  # reported; other timers still run
            about = f"{key} of {owner!r} in partition {index} of {self.topic}"
            self._replicas.failures.note(CallbackKind.TIMER, error, about)
            # Without a retry a dead member, or an open transaction, would never expire.
            if shard.state is ShardState.ACTIVE and timer not in self._timers:
                self._timers.set(timer, self.now_ms + _TIMER_RETRY_MS)

    # Finding shards

    def of(self, key: str) -> S:
        """Return the shard of a key; raise NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        return self.at(self.index_of(key))

    def index_of(self, key: str) -> int:
        """Return the partition of a key; raise NOT_COORDINATOR if the topic does not exist."""
        if not self._partition_count:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        return partition_of(key, self._partition_count)

    def at(self, index: int) -> S:
        """Return the shard of a partition; raises as `of` does."""
        shard = self._shards.get(index)
        if shard is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        shard.check_serving()
        return shard

    def all(self) -> Iterator[S]:
        """Yield all shards; raise COORDINATOR_LOAD_IN_PROGRESS if one is not loaded."""
        for shard in self._shards.values():
            shard.check_serving()
        yield from list(self._shards.values())
