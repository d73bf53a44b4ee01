"""Choosing the compacted log to clean next, and replacing its segments by cleaned ones.

Owns the choice, the replacement and the counters. `cleaning` reads and writes, in threads of its
own. Retention of `compact,delete` topics is the log's.

A log is cleaned when its dirty ratio (see `cleanable`) is above min.cleanable.dirty.ratio, or when
a dirty record is older than max.compaction.lag.ms. The dirtiest log is cleaned first.

After a failed cleaning (disk errors: after three) a log is not cleaned until the next start. It is
listed in `stats.uncleanable`, stays readable, and only grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.log.compaction.batch_compaction import CompactionRules
from millstream.log.compaction.cleanable import (
    Candidate,
    CleanState,
    find_candidate,
    first_dirty_offset,
    is_compacted,
    limit_offset,
)
from millstream.log.compaction.cleaner_checkpoint import CleanerCheckpoint
from millstream.log.compaction.cleaning import (
    CleanedGroup,
    Cleaning,
    CleaningLimits,
    CleaningPlan,
    SourceSegment,
)
from millstream.log.compaction.cleaning_thread import (
    CleaningCancelledError,
    CleaningThread,
    CleaningThrottle,
    IoLimit,
)
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicId, TopicPartition

#: Logs examined before the event loop gets a turn.
_LOGS_PER_TURN: Final = 256
#: The logs among them that may have to be loaded first.
_LOADS_PER_TURN: Final = 8
_LOAD_PAUSE_S: Final = 0.02
#: Attempts to clean a log after disk errors.
_TRIES_MAX: Final = 3

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanerOptions:
    """Broker settings `log.cleaner.*`.

    All but `load_factor` and `backoff_ms` apply to all threads together."""

    #: Logs that are cleaned concurrently.
    threads: int = 1
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    #: Largest filled share of the table of keys.
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024
    #: Most bytes read and written per second; 0 is no limit.
    io_bytes_per_second_max: float = 0.0
    #: Pause of a thread that found nothing to clean.
    backoff_ms: int = 15_000

    @property
    def limits(self) -> CleaningLimits:
        """The memory that one thread may use."""
        threads = max(self.threads, 1)
        return CleaningLimits(
            dedupe_buffer_bytes=self.dedupe_buffer_bytes // threads,
            load_factor=self.load_factor,
            io_buffer_bytes=self.io_buffer_bytes // threads,
        )


@dataclass(slots=True)
class CleanerStats:
    """Counters since the start. `dirty_ratio_max` is of the last search for a log."""

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
    """Cleans the logs of one data directory. Used from the event loop.

    Each of `threads` tasks cleans one log at a time, in a thread. Changed options apply from the
    next cleaning on, bytes per second at once. A surplus task ends after its current cleaning.
    """

    __slots__ = (
        "_changed",
        "_checkpoint",
        "_choosing",
        "_clean_states",
        "_clock",
        "_directory",
        "_disk",
        "_high_watermark",
        "_io_limit",
        "_loads",
        "_options",
        "_retire",
        "_running",
        "_supervisor",
        "_tasks",
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
        self._options = options
        #: Cleaning stays below it and below the last stable offset that follows from it.
        self._high_watermark = high_watermark
        #: Removes files after a number of milliseconds.
        self._retire = retire
        self._checkpoint = CleanerCheckpoint(self._disk, directory.storage.path)
        self._clean_states: dict[TopicPartition, CleanState] = {}
        self._topic_ids: dict[TopicPartition, TopicId] = {}
        #: Logs loaded since the last pause.
        self._loads = 0
        #: Consecutive failures of each log.
        self._tries: dict[TopicPartition, int] = {}
        self._io_limit = IoLimit(self._clock, options.io_bytes_per_second_max)
        #: The logs that are being cleaned, with the throttle that cancels each cleaning.
        self._running: dict[TopicPartition, CleaningThrottle] = {}
        #: One task at a time chooses a log, so that no two choose the same.
        self._choosing = asyncio.Lock()
        #: Set and replaced when the options change.
        self._changed = asyncio.Event()
        #: None while the cleaner is stopped.
        self._supervisor: Supervisor | None = None
        #: Tasks by number.
        self._tasks: dict[int, SupervisedTask] = {}
        self.stats = CleanerStats()

    def start(self, supervisor: Supervisor) -> None:
        """Clean in the background until `stop`."""
        self._supervisor = supervisor
        self._start_tasks(supervisor)

    def _start_tasks(self, supervisor: Supervisor) -> None:
        for number in range(self._options.threads):
            if number not in self._tasks or self._tasks[number].is_done:
                self._tasks[number] = supervisor.start(
                    "log-cleaner", partial(self._run, number), about=f"thread {number}"
                )

    async def stop(self) -> None:
        """Cancel all cleanings, and wait until their threads have ended."""
        self._supervisor = None
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.ended()

    def configure(self, options: CleanerOptions) -> None:
        """Apply options that were changed at run time."""
        self._options = options
        self._io_limit.set_rate(options.io_bytes_per_second_max)
        self._changed.set()
        self._changed = asyncio.Event()
        if self._supervisor is not None:
            self._start_tasks(self._supervisor)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a log that was deleted or moved away.

        A new log of the same name is also recognised without this call, by its topic id.
        """
        self._cancel(topic_partition)
        self._checkpoint.remove(topic_partition)
        self._topic_ids.pop(topic_partition, None)
        self._clean_states.pop(topic_partition, None)
        self._tries.pop(topic_partition, None)
        self.stats.uncleanable.pop(topic_partition, None)

    def truncated(self, topic_partition: TopicPartition, offset: int) -> None:
        """Mark a log that was truncated to `offset`: later offsets are not clean."""
        self._cancel(topic_partition)
        self._checkpoint.lower(topic_partition, offset)
        self._clean_states.pop(topic_partition, None)

    def _cancel(self, topic_partition: TopicPartition) -> None:
        throttle = self._running.get(topic_partition)
        if throttle is not None:
            throttle.cancel()

    async def run_once(self) -> bool:
        """Clean the dirtiest log. Returns False if none needs it, or if the cleaning failed.

        Cancelling this call cancels the cleaning. Segments that were already replaced stay.
        """
        async with self._choosing:
            candidate = await self._choose()
            if candidate is not None:
                partition = candidate.log.topic_partition
                throttle = self._running[partition] = CleaningThrottle(self._io_limit)
        if candidate is None:
            await self._correct_checkpoint()
            return False
        started = self._clock.monotonic()
        try:
            await self._correct_checkpoint()
            await self._clean(candidate, throttle)
        except CleaningCancelledError:
            return False
        except Exception as error:  # noqa: BLE001  # any failure; other logs continue
            if self._directory.get(partition) is candidate.log:
                self._failed(partition, error)
            return False
        finally:
            del self._running[partition]
            self.stats.duration_seconds += self._clock.monotonic() - started
        self._tries.pop(partition, None)
        self.stats.runs += 1
        return True

    async def _run(self, number: int) -> None:
        while number < self._options.threads:
            if not await self.run_once():
                await self._rest()

    async def _rest(self) -> None:
        """Wait until the backoff ends or the options change."""
        changed = self._changed
        try:
            async with asyncio.timeout(self._options.backoff_ms / 1000):
                await changed.wait()
        except TimeoutError:
            pass

    async def _correct_checkpoint(self) -> None:
        self.stats.last_error = await self._checkpoint.correct() or self.stats.last_error

    def _forget_deleted(self) -> None:
        """Forget logs that no longer exist: a new topic may use their names."""
        for partition in [
            each for each in self._checkpoint.offsets if self._directory.get(each) is None
        ]:
            self.forget(partition)

    def _failed(self, partition: TopicPartition, error: Exception) -> None:
        """Record and log a failure. Only disk errors are retried."""
        tries = self._tries[partition] = self._tries.get(partition, 0) + 1
        is_disk = isinstance(error, OSError) or (
            isinstance(error, BrokerError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        )
        sentence = f"{partition} could not be compacted: {error}"
        self.stats.failures += 1
        self.stats.last_error = sentence
        if is_disk and tries < _TRIES_MAX:
            _logger.warning("%s; it will be retried", sentence)
        else:
            _logger.error("%s; it is not compacted until the next start", sentence, exc_info=error)
            self.stats.uncleanable[partition] = str(error)

    # Choosing

    async def _choose(self) -> Candidate | None:
        best: Candidate | None = None
        ratio_max = 0.0
        self._forget_deleted()
        for number, log in enumerate(list(self._directory.all_logs)):
            if number % _LOGS_PER_TURN == _LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            if self._loads >= _LOADS_PER_TURN:
                self._loads = 0
                await asyncio.sleep(_LOAD_PAUSE_S)
            partition = log.topic_partition
            if not is_compacted(log) or partition in self.stats.uncleanable:
                continue
            if partition in self._running:
                continue
            try:
                ratio, candidate = self._examine(log)
            except Exception as error:  # noqa: BLE001  # any failure; other logs continue
                self._failed(partition, error)
                continue
            ratio_max = max(ratio_max, ratio)
            if candidate and (best is None or candidate.dirty_ratio > best.dirty_ratio):
                best = candidate
        self.stats.dirty_ratio_max = ratio_max
        return best

    def _examine(self, log: PartitionLog) -> tuple[float, Candidate | None]:
        """Return the log's dirty ratio, and a candidate if the log should be cleaned.

        Skips a log that has not changed since it was last examined, so that idle logs cost little
        and are not loaded.
        """
        partition, now_ms = log.topic_partition, self._clock.wall_ms()
        if self._topic_ids.setdefault(partition, log.topic_id) != log.topic_id:
            self.forget(partition)
            self._topic_ids[partition] = log.topic_id
        limit = limit_offset(log, self._high_watermark(partition))
        state = self._clean_states.get(partition)
        if state is not None and state.is_unchanged(log, limit, now_ms):
            return state.dirty_ratio, None
        was_loaded = log.is_loaded
        self._loads += not was_loaded
        first_dirty = first_dirty_offset(log, self._checkpoint.offsets.get(partition))
        candidate = find_candidate(log, first_dirty, limit, now_ms)
        if candidate is not None and candidate.is_wanted:
            self._clean_states.pop(partition, None)
            return candidate.dirty_ratio, candidate
        if not was_loaded:
            log.unload()
        ratio = candidate.dirty_ratio if candidate else 0.0
        self._clean_states[partition] = CleanState.of(log, limit, now_ms, ratio)
        return ratio, None

    # Cleaning

    async def _clean(self, candidate: Candidate, throttle: CleaningThrottle) -> None:
        log = candidate.log
        thread = CleaningThread(throttle)
        try:
            await self._flush_markers(log, thread)
            await self._run_plan(log, self._plan(candidate), thread)
        finally:
            thread.close()

    async def _flush_markers(self, log: PartitionLog, thread: CleaningThread) -> None:
        """Flush the markers that decide about cleaned records. They may follow these records."""
        has_markers = any(
            entry.coordinator_epoch >= 0 for entry in log.producer_state.entries.values()
        )
        ticket = log.begin_flush() if has_markers else None
        if ticket is not None:
            try:
                await thread.run(ticket.run)
            finally:
                log.finish_flush(ticket)

    async def _run_plan(
        self, log: PartitionLog, plan: CleaningPlan, thread: CleaningThread
    ) -> None:
        cleaning = Cleaning(plan, self._disk, self._options.limits, thread.throttle)
        try:
            await thread.run(cleaning.build_map)
            self.stats.bytes_read += cleaning.bytes_mapped
            for group in cleaning.groups():
                cleaned = await thread.run(cleaning.rewrite, group)
                self._count(cleaned)
                self._check_current(log, cleaned)
                if cleaned.is_changed:
                    await thread.run(log.segment_files.stage, [cleaned.base_offset])
                    self._swap(log, cleaned, cleaning)
                cleaning.discard()
            await self._checkpoint.advance(log.topic_partition, cleaning.known.end_offset, thread)
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
                    for entry in log.producer_state.entries.values()
                    if entry.batches
                },
                producer_last_epochs={
                    entry.producer_id: entry.epoch
                    for entry in log.producer_state.entries.values()
                    if not entry.batches
                },
                aborted=log.aborted_transactions(segments[0].base_offset, candidate.end_offset),
            ),
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
        )

    def _check_current(self, log: PartitionLog, cleaned: CleanedGroup) -> None:
        """Cancel if the log was truncated or deleted since the cleaning began."""
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

    def _count(self, cleaned: CleanedGroup) -> None:
        stats, counts = self.stats, cleaned.counts
        stats.bytes_read += cleaned.bytes_read
        stats.bytes_written += cleaned.bytes_written
        stats.records_read += counts.records_read
        stats.records_kept += counts.records_kept
        stats.tombstones += counts.tombstones
        stats.tombstones_expired += counts.tombstones_expired
        stats.keyless_records += counts.keyless
