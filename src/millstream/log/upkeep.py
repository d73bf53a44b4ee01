"""Background work for all logs of a broker: flushes, checkpoints, retention, removing files.

Owns the periodic tasks and their rates. Every task does a bounded amount of work before the event
loop gets a turn. Flushing works on sets that logs add themselves to. Retention checks idle logs
rarely and in small groups, so that 100,000 of them cost next to nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.flush.flusher import Flusher
from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError
from millstream.model.topic import TopicPartition

_logger = logging.getLogger(__name__)

#: Logs checked before the event loop gets a turn.
_LOGS_PER_TURN: Final = 256
#: The logs among them that may have to be loaded first: each costs several system calls.
_LOADS_PER_TURN: Final = 8
_LOAD_PAUSE_S: Final = 0.02
#: Paths that one call in a thread removes.
_REMOVALS_PER_TURN: Final = 64
#: Largest share of the time that one periodic task may use.
_CHECKPOINT_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepOptions:
    """Intervals of the periodic tasks."""

    flush_check_interval_ms: int = 1_000
    #: Time between checkpoints of recovery points, log start offsets and high watermarks.
    recovery_point_interval_ms: int = 60_000
    log_start_interval_ms: int = 60_000
    high_watermark_interval_ms: int = 5_000
    retention_check_interval_ms: int = 300_000
    initial_delay_ms: int = 30_000
    producer_check_interval_ms: int = 600_000


@dataclass(slots=True)
class UpkeepStats:
    """Counters since the start."""

    flushes: int = 0
    checkpoints: int = 0
    segments_expired: int = 0
    files_removed: int = 0
    failures: int = 0


class LogUpkeep:
    """Runs the periodic tasks of all logs between `start` and `stop`, on the event loop."""

    __slots__ = (
        "_are_watermarks_unwritten",
        "_clock",
        "_directory",
        "_flusher",
        "_high_watermark",
        "_options",
        "_removals",
        "_removals_changed",
        "_supervisor",
        "_tasks",
        "stats",
    )

    def __init__(
        self,
        directory: LogDirectory,
        options: UpkeepOptions,
        high_watermark: Callable[[TopicPartition], int],
        flusher: Flusher,
        supervisor: Supervisor,
    ) -> None:
        self._supervisor = supervisor
        self._directory = directory
        self._options = options
        self._high_watermark = high_watermark
        self._flusher = flusher
        self._clock = directory.storage.clock
        self._tasks: list[SupervisedTask] = []
        #: (due time, number for a stable order, path) of files and folders to remove.
        self._removals: list[tuple[float, int, Path]] = []
        self._removals_changed = asyncio.Event()
        #: Whether the last checkpoint of the high watermarks failed.
        self._are_watermarks_unwritten = False
        self.stats = UpkeepStats()

    def start(self) -> None:
        options, delay_ms = self._options, self._options.initial_delay_ms
        for path in self._directory.deleted_paths:
            self.remove_later([path], 0)
        self._directory.deleted_paths.clear()
        periodic: list[tuple[str, Callable[[], Awaitable[None]], int, int]] = [
            ("log-flush", self._flush_due, options.flush_check_interval_ms, 0),
            (
                "recovery-point-checkpoint",
                self._checkpoint_recovery_points,
                options.recovery_point_interval_ms,
                delay_ms,
            ),
            (
                "log-start-checkpoint",
                self.checkpoint_log_starts,
                options.log_start_interval_ms,
                delay_ms,
            ),
            (
                "high-watermark-checkpoint",
                self._checkpoint_high_watermarks,
                options.high_watermark_interval_ms,
                delay_ms,
            ),
            ("log-retention", self._expire, options.retention_check_interval_ms, delay_ms),
            (
                "producer-expiry",
                self._expire_producers,
                options.producer_check_interval_ms,
                delay_ms,
            ),
        ]
        for name, work, interval_ms, first_ms in periodic:
            repeat = partial(self._repeat, work, interval_ms, first_ms)
            self._tasks.append(self._supervisor.start(name, repeat))
        self._tasks.append(self._supervisor.start("file-removal", self._remove_files))

    async def stop(self) -> None:
        """End all tasks and collect the high watermarks a last time.

        Files that wait for removal stay: the next load of their log removes them."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await task.ended()
        self._tasks.clear()
        await self._collect_high_watermarks()

    async def _repeat(
        self, work: Callable[[], Awaitable[None]], interval_ms: int, delay_ms: int
    ) -> None:
        await asyncio.sleep(delay_ms / 1000)
        while True:
            started = self._clock.monotonic()
            try:
                await work()
            except (BrokerError, OSError) as error:
                self.stats.failures += 1
                _logger.error("a periodic task of the logs failed: %s", error)
            took = self._clock.monotonic() - started
            await asyncio.sleep(max(interval_ms / 1000, took / _CHECKPOINT_SHARE))

    # Flushing

    async def _flush_due(self) -> None:
        storage = self._directory.storage
        now_ms = self._clock.wall_ms()
        due = list(storage.flush_due)
        due += [log for log in storage.unflushed if log.is_flush_due(now_ms)]
        # Each log leaves both sets when its flush begins, so a failure loses none of them.
        for start in range(0, len(due), _LOGS_PER_TURN):
            futures = [self._flusher.request(log) for log in due[start : start + _LOGS_PER_TURN]]
            results = await asyncio.gather(*map(asyncio.shield, futures), return_exceptions=True)
            self.stats.flushes += len(results)
            self.stats.failures += sum(isinstance(result, BrokerError) for result in results)

    # Checkpoints

    async def _checkpoint_recovery_points(self) -> None:
        if self._directory.storage.are_points_stale:
            await asyncio.to_thread(self._directory.checkpoint_recovery_points)
            self.stats.checkpoints += 1

    async def checkpoint_log_starts(self) -> None:
        """Write the log start offsets now, if one of them changed since the last checkpoint."""
        if self._directory.storage.are_starts_stale:
            await asyncio.to_thread(self._directory.checkpoint_log_starts)
            self.stats.checkpoints += 1

    async def _checkpoint_high_watermarks(self) -> None:
        if await self._collect_high_watermarks():
            watermarks = dict(self._directory.high_watermarks)
            try:
                await asyncio.to_thread(self._directory.checkpoint_high_watermarks, watermarks)
            except OSError:
                self._are_watermarks_unwritten = True
                raise
            self.stats.checkpoints += 1

    async def _collect_high_watermarks(self) -> bool:
        """Update `directory.high_watermarks`. Returns whether they must be written."""
        known, changed = self._directory.high_watermarks, self._are_watermarks_unwritten
        self._are_watermarks_unwritten = False
        for number, log in enumerate(list(self._directory.all_logs)):
            if number % _LOGS_PER_TURN == _LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            topic_partition = log.topic_partition
            high_watermark = self._high_watermark(topic_partition)
            if high_watermark != known.get(topic_partition, 0):
                known[topic_partition] = high_watermark
                changed = True
        return changed

    # Retention

    async def _expire(self) -> None:
        loads = 0
        for number, log in enumerate(list(self._directory.all_logs)):
            if number % _LOGS_PER_TURN == _LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            now_ms = self._clock.wall_ms()
            if not log.is_recovered or log.failure is not None:
                continue
            if log.is_loaded:
                self._expire_log(log, now_ms)
            elif log.log_end_offset > log.log_start_offset and now_ms >= log.next_expiry_ms:
                self._expire_log(log, now_ms)
                log.unload()
                loads += 1
                if loads % _LOADS_PER_TURN == 0:
                    await asyncio.sleep(_LOAD_PAUSE_S)

    def _expire_log(self, log: PartitionLog, now_ms: int) -> None:
        try:
            paths = log.expire(now_ms, self._high_watermark(log.topic_partition))
        except BrokerError as error:
            self.stats.failures += 1
            _logger.error("retention failed: %s", error)
            return
        except Exception as error:  # noqa: BLE001  # reported; other logs continue
            self._supervisor.report("log-retention", error, str(log.topic_partition))
            return
        if paths:
            self.stats.segments_expired += sum(path.name.endswith(".log.deleted") for path in paths)
            self.remove_later(paths, log.config.file_delete_delay_ms)

    async def _expire_producers(self) -> None:
        now_ms = self._clock.wall_ms()
        for number, log in enumerate(list(self._directory.all_logs)):
            if number % _LOGS_PER_TURN == _LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            try:
                log.expire_producers(now_ms)
            except Exception as error:  # noqa: BLE001  # reported; other logs continue
                self._supervisor.report("producer-expiry", error, str(log.topic_partition))

    # Removing files

    def remove_later(self, paths: Sequence[Path], delay_ms: int) -> None:
        """Remove files or folders in a thread, after `delay_ms`."""
        due = self._clock.monotonic() + delay_ms / 1000
        for path in paths:
            heapq.heappush(self._removals, (due, len(self._removals), path))
        self._removals_changed.set()

    async def _remove_files(self) -> None:
        while True:
            for path in self._directory.deleted_paths:
                self.remove_later([path], 0)
            self._directory.deleted_paths.clear()
            due = self._pop_due_removals()
            if due:
                await asyncio.to_thread(self._remove, due)
                continue
            self._removals_changed.clear()
            # The directory does not notify of deleted logs, so it is polled.
            wait_s = 1.0
            if self._removals:
                wait_s = min(wait_s, max(self._removals[0][0] - self._clock.monotonic(), 0.0))
            try:
                async with asyncio.timeout(wait_s):
                    await self._removals_changed.wait()
            except TimeoutError:
                continue

    def _pop_due_removals(self) -> list[Path]:
        now = self._clock.monotonic()
        due: list[Path] = []
        while self._removals and self._removals[0][0] <= now and len(due) < _REMOVALS_PER_TURN:
            due.append(heapq.heappop(self._removals)[2])
        return due

    def _remove(self, paths: list[Path]) -> None:
        disk = self._directory.storage.disk
        for path in paths:
            try:
                if path.name.endswith("-delete"):
                    disk.remove_tree(path)
                else:
                    disk.remove(path)
                self.stats.files_removed += 1
            except OSError as error:
                self.stats.failures += 1
                _logger.error("%s cannot be removed: %s", path, error)
