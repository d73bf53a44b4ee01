"""Which compacted log is cleaned next, how far, and what became of it.

Owns the choice, the file that remembers how far each log is clean,
the swap of cleaned segments into a log, and the figures. The reading and writing is `cleaning`,
in a thread of its own; retention of `compact,delete` topics is the log's.

A log is cleaned when the dirty part of what may be cleaned (see `cleanable`) is more than
min.cleanable.dirty.ratio, or when a dirty record is older than max.compaction.lag.ms. Of several
such logs the dirtiest goes first.

File: `cleaner-offset-checkpoint` in the data folder, Kafka's format: the first dirty offset of
each log that was ever cleaned. It is written after the cleaned segments are in place; if a crash
loses it, the same offsets are cleaned once more.

A cleaning that fails (disk errors: three times) takes its log out of the running until the next
start: the log is reported in `stats.uncleanable` and stays readable, only growing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.log.checkpoint import read_offsets, write_offsets
from millstream.log.cleanable import (
    Candidate,
    Quiet,
    find_candidate,
    first_dirty_offset,
    is_compacted,
    limit_offset,
)
from millstream.log.cleaning import (
    CleanedGroup,
    Cleaning,
    CleaningCancelledError,
    CleaningLimits,
    CleaningPlan,
    Pace,
    SourceSegment,
)
from millstream.log.compaction import CompactionRules
from millstream.log.directory import LogDirectory
from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicId, TopicPartition

CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
#: How many logs are looked at before the event loop gets a turn.
_LOGS_PER_TURN: Final = 256
#: Of those, logs that must be loaded first.
_LOADS_PER_TURN: Final = 8
_LOAD_PAUSE_S: Final = 0.02
#: How often a log is tried whose cleaning meets disk errors.
_TRIES_MAX: Final = 3

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CleanerOptions:
    """Broker settings `log.cleaner.*`."""

    limits: CleaningLimits = field(default_factory=CleaningLimits)
    backoff_ms: int = 15_000


@dataclass(slots=True)
class CleanerStats:
    """Figures since the start, but for `dirty_ratio_max`, which is of the last look."""

    runs: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    tombstones: int = 0
    tombstones_expired: int = 0
    keyless_records: int = 0
    duration_seconds: float = 0.0
    dirty_ratio_max: float = 0.0
    last_error: str | None = None
    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)


class Cleaner:
    """Cleans the logs of one data folder, one at a time. Used from the event loop."""

    __slots__ = (
        "_clock",
        "_directory",
        "_disk",
        "_first_dirty",
        "_high_watermark",
        "_is_checkpoint_stale",
        "_loads",
        "_options",
        "_pace",
        "_path",
        "_quiet",
        "_retire",
        "_running",
        "_task",
        "_topic_ids",
        "_tries",
        "stats",
    )

    def __init__(
        self,
        directory: LogDirectory,
        options: CleanerOptions,
        high_watermark: Callable[[TopicPartition], int],
        retire: Callable[[Sequence[Path], int], None],
    ) -> None:
        self._directory = directory
        self._disk = directory.storage.disk
        self._clock = directory.storage.clock
        self._path = directory.storage.path / CLEANER_OFFSETS
        self._options = options
        #: Nothing at or past it is touched, nor past the last stable offset that it makes.
        self._high_watermark = high_watermark
        #: Told of files to be removed after so many milliseconds.
        self._retire = retire
        self._first_dirty = self._load_checkpoint()
        self._quiet: dict[TopicPartition, Quiet] = {}
        self._topic_ids: dict[TopicPartition, TopicId] = {}
        #: Logs loaded by this look since the event loop had a rest.
        self._loads = 0
        #: Failures in a row.
        self._tries: dict[TopicPartition, int] = {}
        #: Whether the file says more than is true.
        self._is_checkpoint_stale = False
        #: The log being cleaned and the way to stop that, while one is.
        self._running: TopicPartition | None = None
        self._pace: Pace | None = None
        self._task: SupervisedTask | None = None
        self.stats = CleanerStats()

    def start(self, supervisor: Supervisor) -> None:
        """Clean in the background until `stop`."""
        self._task = supervisor.start("log-cleaner", self._run)

    async def stop(self) -> None:
        """Abandon a cleaning that runs, and return when its thread has ended."""
        task, self._task = self._task, None
        if task is not None:
            await task.stop()

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop all that is known of a log that was deleted or moved away.

        A new log of the same name is noticed without it, by its topic id.
        """
        if self._running == topic_partition and self._pace is not None:
            self._pace.cancel()
        if self._first_dirty.pop(topic_partition, None) is not None:
            self._is_checkpoint_stale = True
        self._topic_ids.pop(topic_partition, None)
        self._quiet.pop(topic_partition, None)
        self._tries.pop(topic_partition, None)
        self.stats.uncleanable.pop(topic_partition, None)

    def truncated(self, topic_partition: TopicPartition, offset: int) -> None:
        """A log was cut to `offset`: what it gets from there on is not clean."""
        if self._running == topic_partition and self._pace is not None:
            self._pace.cancel()
        if self._first_dirty.get(topic_partition, 0) > offset:
            self._first_dirty[topic_partition] = offset
            self._is_checkpoint_stale = True
        self._quiet.pop(topic_partition, None)

    async def run_once(self) -> bool:
        """Clean the log that needs it most. False if none does, or if that failed.

        Cancelling it abandons the cleaning; segments already swapped in stay so.
        """
        candidate = await self._choose()
        if self._is_checkpoint_stale:
            await self._correct_checkpoint()
        if candidate is None:
            return False
        partition = candidate.log.topic_partition
        started = self._clock.monotonic()
        self._running = partition
        try:
            await self._clean(candidate)
        except CleaningCancelledError:
            return False
        except Exception as error:  # noqa: BLE001  # whatever it is, other logs go on
            if self._directory.get(partition) is candidate.log:
                self._failed(partition, error)
            return False
        finally:
            self._running = self._pace = None
            self.stats.duration_seconds += self._clock.monotonic() - started
        self._tries.pop(partition, None)
        self.stats.runs += 1
        return True

    async def _run(self) -> None:
        while True:
            if not await self.run_once():
                await asyncio.sleep(self._options.backoff_ms / 1000)

    def _load_checkpoint(self) -> dict[TopicPartition, int]:
        try:
            return read_offsets(self._disk, self._path)
        except ValueError as error:
            # Losing it costs work and nothing else.
            logger.warning("all compacted logs will be cleaned from their start: %s", error)
            return {}

    async def _correct_checkpoint(self) -> None:
        self._is_checkpoint_stale = False
        try:
            await asyncio.to_thread(self._write_checkpoint, dict(self._first_dirty))
        except OSError as error:
            self._is_checkpoint_stale = True
            self.stats.last_error = f"{self._path} could not be written: {error}"
            logger.warning("%s", self.stats.last_error)

    def _drop_strangers(self) -> None:
        """Drop what the checkpoint says of logs that are no more: their names may be used again."""
        for partition in [one for one in self._first_dirty if self._directory.get(one) is None]:
            self.forget(partition)

    def _failed(self, partition: TopicPartition, error: Exception) -> None:
        """Report it. A full or failing disk gets a few more chances, anything else none."""
        tries = self._tries[partition] = self._tries.get(partition, 0) + 1
        is_disk = isinstance(error, OSError) or (
            isinstance(error, BrokerError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        )
        sentence = f"{partition} could not be compacted: {error}"
        self.stats.failures += 1
        self.stats.last_error = sentence
        if is_disk and tries < _TRIES_MAX:
            logger.warning("%s; it will be tried again", sentence)
        else:
            logger.error("%s; it is left as it is until the next start", sentence, exc_info=error)
            self.stats.uncleanable[partition] = str(error)

    # -- choosing ------------------------------------------------------------------------------

    async def _choose(self) -> Candidate | None:
        best: Candidate | None = None
        ratio_max = 0.0
        self._drop_strangers()
        for number, log in enumerate(list(self._directory.all_logs)):
            if number % _LOGS_PER_TURN == _LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            if self._loads >= _LOADS_PER_TURN:
                self._loads = 0
                await asyncio.sleep(_LOAD_PAUSE_S)
            if not is_compacted(log) or log.topic_partition in self.stats.uncleanable:
                continue
            try:
                ratio, candidate = self._examine(log)
            except Exception as error:  # noqa: BLE001  # whatever it is, other logs go on
                self._failed(log.topic_partition, error)
                continue
            ratio_max = max(ratio_max, ratio)
            if candidate and (best is None or candidate.dirty_ratio > best.dirty_ratio):
                best = candidate
        self.stats.dirty_ratio_max = ratio_max
        return best

    def _examine(self, log: PartitionLog) -> tuple[float, Candidate | None]:
        """The log's dirty ratio, and the log itself if it should be cleaned.

        Looks at a log's segments only when something has changed since it was last found quiet,
        so that many idle logs cost little and are not loaded again and again.
        """
        partition, now_ms = log.topic_partition, self._clock.wall_ms()
        if self._topic_ids.setdefault(partition, log.topic_id) != log.topic_id:
            self.forget(partition)
            self._topic_ids[partition] = log.topic_id
        limit = limit_offset(log, self._high_watermark(partition))
        quiet = self._quiet.get(partition)
        if quiet is not None and quiet.is_still_so(log, limit, now_ms):
            return quiet.dirty_ratio, None
        was_loaded = log.is_loaded
        self._loads += not was_loaded
        first_dirty = first_dirty_offset(log, self._first_dirty.get(partition))
        candidate = find_candidate(log, first_dirty, limit, now_ms)
        if candidate is not None and candidate.is_wanted:
            self._quiet.pop(partition, None)
            return candidate.dirty_ratio, candidate
        if not was_loaded:
            log.unload()
        ratio = candidate.dirty_ratio if candidate else 0.0
        self._quiet[partition] = Quiet.of(log, limit, now_ms, ratio)
        return ratio, None

    # -- cleaning ------------------------------------------------------------------------------

    async def _clean(self, candidate: Candidate) -> None:
        log = candidate.log
        self._pace = Pace(self._clock, self._options.limits.io_bytes_per_second_max)
        executor = ThreadPoolExecutor(1, thread_name_prefix="log-cleaner")
        try:
            await self._flush_markers(log, executor)
            await self._run_plan(log, self._plan(candidate), executor)
        finally:
            executor.shutdown()

    async def _flush_markers(self, log: PartitionLog, executor: ThreadPoolExecutor) -> None:
        """Make the markers durable that decide about what is cleaned: they may come after it."""
        has_markers = any(entry.coordinator_epoch >= 0 for entry in log.producers())
        ticket = log.begin_flush() if has_markers else None
        if ticket is not None:
            try:
                await self._in_thread(executor, ticket.run)
            finally:
                log.finish_flush(ticket)

    async def _run_plan(
        self, log: PartitionLog, plan: CleaningPlan, executor: ThreadPoolExecutor
    ) -> None:
        assert self._pace is not None
        cleaning = Cleaning(plan, self._disk, self._options.limits, self._pace)
        try:
            await self._in_thread(executor, cleaning.build_map)
            self.stats.bytes_read += cleaning.bytes_mapped
            for group in cleaning.groups():
                cleaned = await self._in_thread(executor, cleaning.rewrite, group)
                self._count(cleaned)
                self._check_current(log, cleaned)
                if cleaned.is_changed:
                    await self._in_thread(executor, log.stage_replacement, [cleaned.base_offset])
                    self._swap(log, cleaned, cleaning)
                cleaning.discard()
            self._first_dirty[log.topic_partition] = cleaning.known.end_offset
            await self._in_thread(executor, self._write_checkpoint, dict(self._first_dirty))
        finally:
            cleaning.discard()

    def _plan(self, candidate: Candidate) -> CleaningPlan:
        log, config = candidate.log, candidate.log.config
        segments = log.segments
        return CleaningPlan(
            directory=log.directory,
            segments=[
                SourceSegment(
                    segment.base_offset, following.base_offset, segment.size, segment.log.path
                )
                for segment, following in pairwise(segments)
                if segment.base_offset < candidate.end_offset
            ],
            first_dirty_offset=candidate.first_dirty_offset,
            rules=CompactionRules(
                now_ms=self._clock.wall_ms(),
                delete_retention_ms=config.delete_retention_ms,
                round_end_offset=candidate.end_offset,
                payload_bytes_max=self._directory.storage.options.decompressed_bytes_max,
                producer_last_offsets={
                    entry.producer_id: entry.batches[-1].last_offset
                    for entry in log.producers()
                    if entry.batches
                },
                producer_last_epochs={
                    entry.producer_id: entry.epoch for entry in log.producers() if not entry.batches
                },
                aborted=log.aborted_transactions(segments[0].base_offset, candidate.end_offset),
            ),
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
        )

    def _check_current(self, log: PartitionLog, cleaned: CleanedGroup) -> None:
        """Stop unless the log still has what was cleaned: it may have been cut or deleted."""
        if self._directory.get(log.topic_partition) is not log:
            raise CleaningCancelledError
        sizes = {segment.base_offset: segment.size for segment in log.segments[:-1]}
        if any(sizes.get(one.base_offset) != one.size_bytes for one in cleaned.sources):
            raise CleaningCancelledError

    def _swap(self, log: PartitionLog, cleaned: CleanedGroup, cleaning: Cleaning) -> None:
        self._check_current(log, cleaned)
        cleaning.claimed()
        old = [one.base_offset for one in cleaned.sources]
        paths = log.replace_segments(old, [cleaned.base_offset])
        self._retire(paths, log.config.file_delete_delay_ms)

    def _write_checkpoint(self, offsets: dict[TopicPartition, int]) -> None:
        write_offsets(self._disk, self._path, offsets)

    def _count(self, cleaned: CleanedGroup) -> None:
        stats, counts = self.stats, cleaned.counts
        stats.bytes_read += cleaned.bytes_read
        stats.bytes_written += cleaned.bytes_written
        stats.records_read += counts.records_read
        stats.records_kept += counts.records_kept
        stats.tombstones += counts.tombstones
        stats.tombstones_expired += counts.tombstones_expired
        stats.keyless_records += counts.keyless

    async def _in_thread(
        self,
        executor: ThreadPoolExecutor,
        work: Callable[_P, _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """The result of `work`. If cancelled, the thread is told so and waited for."""
        future = asyncio.get_running_loop().run_in_executor(executor, lambda: work(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if self._pace is not None:
                self._pace.cancel()
            await asyncio.wait([future])
            future.exception()
            raise
