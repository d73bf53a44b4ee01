"""The backlog of partitions led here: the records that a reader has not read yet.

A partition that was read to its end costs one comparison. Any other partition costs a search in the
index and a batch header. The search is skipped if the caller remembers its result.

Headroom is the time until retention deletes the first unread record, at the earliest. Retention by
time is computed from the age of the record's segment, retention by size from the recent growth rate
of the partition. Headroom is infinite if retention deletes nothing, and zero if it has begun to.

Callers measure many positions and await `pause_if_due` after each, so that the loop is never busy
for long.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import Final, NamedTuple

from millstream.broker.metrics.growth_rate import GrowthRates
from millstream.env.clock import Clock
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.log.reading import backlog
from millstream.log.reading.backlog import UnreadBatch
from millstream.model.error import BrokerError
from millstream.model.topic import TopicPartition
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas

_logger = logging.getLogger(__name__)

#: Committed offsets measured, and partitions sampled, in one turn of the loop.
_OFFSETS_PER_TURN: Final = 50
_PARTITIONS_PER_TURN: Final = 1000
#: Logs loaded in one turn of the loop: each costs a few system calls.
_LOADS_PER_TURN: Final = 8
_LOAD_PAUSE_S: Final = 0.02

UNLIMITED: Final = math.inf


class KnownRecord(NamedTuple):
    """The first unread record that an earlier measurement found."""

    offset: int
    timestamp_ms: int


class Backlog(NamedTuple):
    """The unread part of a partition, for one reader."""

    #: The committed offset, or the start of the log if that is higher.
    offset: int
    end_offset: int
    #: False also if the offsets up to the end hold no records, which compaction and transaction
    #: markers cause.
    has_unread: bool = False
    #: Timestamp of the first unread record; None if it is unknown.
    timestamp_ms: int | None = None
    #: None if the log cannot be read.
    headroom_seconds: float | None = UNLIMITED

    @property
    def records(self) -> int:
        return self.end_offset - self.offset if self.has_unread else 0


class PartitionBacklogs:
    """Measures backlogs and growth rates of the partitions led here. Event loop only."""

    __slots__ = (
        "_clock",
        "_loads",
        "_measured",
        "_replicas",
        "_task",
        "_unreadable",
        "failures",
        "rates",
    )

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        #: Offsets measured, and logs loaded for that, since the last pause.
        self._measured = self._loads = 0
        #: Partitions whose failure is in the log.
        self._unreadable: set[TopicPartition] = set()
        self._task: SupervisedTask | None = None
        self.rates = GrowthRates()
        #: Measurements that failed, mostly because a log cannot be read.
        self.failures = 0

    def measure(self, partition: Partition, committed: int, known: KnownRecord | None) -> Backlog:
        """Return the backlog of a partition led here, for a reader at a committed offset."""
        log = partition.log
        end = partition.high_watermark
        offset = max(committed, log.log_start_offset)
        if offset >= end:
            return Backlog(offset, end)
        was_loaded = log.is_loaded
        try:
            # Readers see nothing beyond the first open transaction.
            end = partition.last_stable_offset
            first = self._first_unread(partition, offset, end, known) if offset < end else None
            if first is None:
                return Backlog(offset, end)
            headroom = 0.0 if committed < offset else self._headroom(partition, offset)
        except (BrokerError, OSError) as error:
            self._failed(partition, error)
            return Backlog(offset, end, True, None, None)
        finally:
            if not was_loaded:
                self._loads += 1
                log.unload()
        self._unreadable.discard(partition.topic_partition)
        return Backlog(offset, end, True, first.timestamp_ms, headroom)

    async def pause_if_due(self) -> None:
        """Count one measurement, and yield to the loop after many."""
        self._measured += 1
        if self._loads >= _LOADS_PER_TURN:
            self._measured = self._loads = 0
            await asyncio.sleep(_LOAD_PAUSE_S)
        elif self._measured >= _OFFSETS_PER_TURN:
            self._measured = 0
            await asyncio.sleep(0)

    def _failed(self, partition: Partition, error: Exception) -> None:
        self.failures += 1
        if partition.topic_partition not in self._unreadable:
            # Once, and not for every group in every round.
            self._unreadable.add(partition.topic_partition)
            _logger.error("the lag in %s cannot be measured: %s", partition.topic_partition, error)

    def _first_unread(
        self, partition: Partition, offset: int, end: int, known: KnownRecord | None
    ) -> UnreadBatch | None:
        """Return the record that the caller remembers, so that cold data stays cold; search if
        compaction may have removed it."""
        log = partition.log
        is_kept = "compact" not in log.config.cleanup_policy
        if known is not None and known.offset == offset and is_kept:
            return UnreadBatch(known.timestamp_ms)
        return backlog.first_unread_batch(log, offset, end)

    def _headroom(self, partition: Partition, offset: int) -> float:
        left = backlog.retention_bound(partition.log, offset)
        headroom = UNLIMITED
        if left.until_ms is not None:
            headroom = (left.until_ms - self._clock.wall_ms()) / 1000
        if left.bytes_left is not None:
            rate = self.rates.bytes_per_second(partition.topic_partition)
            if rate > 0:
                headroom = min(headroom, left.bytes_left / rate)
        return max(headroom, 0.0)

    # Rates

    def start(self, interval_ms: int, supervisor: Supervisor) -> None:
        """Sample the growth rates regularly. For a broker that collects no lag itself: coordinators
        on other brokers query its headroom."""
        work = partial(self._sample_regularly, interval_ms)
        self._task = supervisor.start("partition-growth", work)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _sample_regularly(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await self.sample_rates()
            except Exception:
                self.failures += 1
                raise

    async def sample_rates(self) -> None:
        """Sample the growth of each partition, in slices that yield to the loop."""
        for number, partition in enumerate(list(self._replicas), 1):
            self.rates.sample(partition.log, self._clock.monotonic())
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.rates.forget_others(lambda key: self._replicas.get(*key) is not None)
