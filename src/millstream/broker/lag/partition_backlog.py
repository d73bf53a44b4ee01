"""What the partitions led here hold for a reader that has committed an offset.

A partition that was read to its end costs a comparison. Any other one costs a search in the index
and a batch header; the search is skipped if the caller remembers its result from an earlier look.

Headroom is the time until retention deletes the first unread record, at the earliest: by time from
the age of its segment, by size from the rate at which the partition grew lately. It is infinite if
retention deletes nothing, and zero if it has begun to.

Callers look at many positions. They await `give_way` after each, which bounds the time that the
loop is busy with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import Final, NamedTuple

from millstream.broker.metrics.ingress import IngressRates
from millstream.env.clock import Clock
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.log import backlog
from millstream.log.backlog import UnreadBatch
from millstream.model.error import BrokerError
from millstream.model.topic import TopicPartition
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas

_log = logging.getLogger(__name__)

#: Committed offsets, and partitions' rates, looked at between two turns of the loop.
_OFFSETS_PER_TURN: Final = 50
_PARTITIONS_PER_TURN: Final = 1000
#: Logs that must be loaded for it: each is a handful of system calls.
_LOADS_PER_TURN: Final = 8
_LOAD_PAUSE_S: Final = 0.02

UNLIMITED: Final = math.inf


class Known(NamedTuple):
    """What an earlier look found at an offset."""

    offset: int
    timestamp_ms: int


class Backlog(NamedTuple):
    """What a partition holds for one reader."""

    #: The committed offset, or the start of the log if that is higher.
    offset: int
    end_offset: int
    #: False also where the offsets up to the end hold no records: compaction and transaction
    #: markers leave such offsets.
    has_unread: bool = False
    #: Time of the first unread record; None if it is not known.
    timestamp_ms: int | None = None
    #: None if the log can't be read.
    headroom_seconds: float | None = UNLIMITED

    @property
    def records(self) -> int:
        return self.end_offset - self.offset if self.has_unread else 0


class PartitionBacklogs:
    """Looks at the partitions of this broker. Event loop only."""

    __slots__ = (
        "_clock",
        "_loads",
        "_looks",
        "_replicas",
        "_task",
        "_unreadable",
        "failures",
        "rates",
    )

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock
        #: Offsets looked at, and logs loaded for it, since a caller last gave way.
        self._looks = self._loads = 0
        #: Partitions whose failure was logged.
        self._unreadable: set[TopicPartition] = set()
        self._task: SupervisedTask | None = None
        self.rates = IngressRates()
        #: Looks that failed, mostly at logs that can't be read.
        self.failures = 0

    def look(self, partition: Partition, committed: int, known: Known | None) -> Backlog:
        """Return what a partition that this broker leads holds after a committed offset."""
        log = partition.log
        end = partition.high_watermark
        offset = max(committed, log.log_start_offset)
        if offset >= end:
            return Backlog(offset, end)
        was_loaded = log.is_loaded
        try:
            # Transactions that are open hold back what follows them.
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

    async def give_way(self) -> None:
        """Count one look, and let others have their turn if there were many."""
        self._looks += 1
        if self._loads >= _LOADS_PER_TURN:
            self._looks = self._loads = 0
            await asyncio.sleep(_LOAD_PAUSE_S)
        elif self._looks >= _OFFSETS_PER_TURN:
            self._looks = 0
            await asyncio.sleep(0)

    def _failed(self, partition: Partition, error: Exception) -> None:
        self.failures += 1
        if partition.topic_partition not in self._unreadable:
            # Once, and not at every look of every group.
            self._unreadable.add(partition.topic_partition)
            _log.error("the lag in %s can't be found: %s", partition.topic_partition, error)

    def _first_unread(
        self, partition: Partition, offset: int, end: int, known: Known | None
    ) -> UnreadBatch | None:
        """Return what the caller remembers, so that cold data stays cold; not if compaction may
        have removed the record."""
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
        """Keep the rates up to date on a broker that collects no lag itself: coordinators on
        other brokers ask it for headroom."""
        work = partial(self._look_regularly, interval_ms)
        self._task = supervisor.start("partition-growth", work)

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _look_regularly(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await self.look_at_rates()
            except Exception:
                self.failures += 1
                raise

    async def look_at_rates(self) -> None:
        """See how much each partition has grown, giving way to other work in between."""
        for number, partition in enumerate(list(self._replicas), 1):
            self.rates.look(partition.log, self._clock.monotonic())
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.rates.forget_others(lambda key: self._replicas.get(*key) is not None)
