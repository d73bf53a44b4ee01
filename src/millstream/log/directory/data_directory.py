"""The data directory of a broker: its identity, its checkpoints and its logs.

    .lock                   held by the process that uses the directory
    meta.properties         whose directory it is: cluster.id, node.id, directory.id
    .kafka_cleanshutdown    exists only between a clean shutdown and the next start
    <checkpoints>           see `checkpoint`
    replica-folders         see `replica_folders`
    <topic>-<partition>/    a log; created by its first append
    <topic>-<partition>.<32 hex digits>-delete/   a deleted log that is being removed

A clean shutdown flushes every log, then writes the checkpoints, then the marker. A start removes
the marker durably before anything is written. So the marker means that the checkpoints tell the end
of every log, and that no log needs recovery.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, TypeAlias

from millstream.env.clock import Clock
from millstream.env.disk import Disk, File
from millstream.env.random import Random
from millstream.log.directory import checkpoint
from millstream.log.directory.lock import lock_directory
from millstream.log.directory.log_folder import LogFolder
from millstream.log.directory.partition_metadata import read_topic_id
from millstream.log.directory.replica_folders import ReplicaFolders
from millstream.log.files import FileCache
from millstream.log.flush.shutdown import flush_all
from millstream.log.log import PartitionLog
from millstream.log.storage import LogOptions, Storage
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError
from millstream.model.topic import TopicId, TopicPartition, format_topic_id

_logger = logging.getLogger(__name__)

CLEAN_MARKER: Final = ".kafka_cleanshutdown"
META: Final = "meta.properties"
DELETE_SUFFIX: Final = "-delete"

_CLEAN_CONTENT: Final = b'{"version":0,"brokerEpoch":-1,"millstream":1}'
_NAME_BYTES_MAX: Final = 255
#: Least number of files that a thread may open while it recovers a log.
_FILES_PER_THREAD_MIN: Final = 16

#: Called with (recovered logs, logs to recover, the log just recovered).
Progress: TypeAlias = Callable[[int, int, TopicPartition], None]


class WrongDirectoryError(Exception):
    """The data directory belongs to another cluster or node."""


class LogDirectory:
    """All logs of one data directory. Created by `open`.

    All methods run on the event loop's thread unless they say otherwise.
    """

    __slots__ = (
        "_checkpoint_lock",
        "_lock_file",
        "_log_starts",
        "_logs",
        "_names",
        "_recovery_points",
        "deleted_paths",
        "high_watermarks",
        "meta",
        "storage",
        "was_clean",
    )

    def __init__(self, storage: Storage, lock_file: File) -> None:
        self.storage = storage
        self._lock_file = lock_file
        self._logs: dict[TopicPartition, PartitionLog] = {}
        #: Held while a checkpoint is written, by whichever thread.
        self._checkpoint_lock = threading.Lock()
        disk, path = storage.disk, storage.path
        marker = path / CLEAN_MARKER
        #: Whether the last shutdown was clean. If not, call `recover` before serving.
        self.was_clean = disk.exists(marker) and disk.read(marker) == _CLEAN_CONTENT
        #: Offsets in the checkpoints of partitions for which `log` was not called yet.
        self._recovery_points = self._read(checkpoint.RECOVERY_POINTS)
        self._log_starts = self._read(checkpoint.LOG_STARTS)
        #: High watermarks of the last checkpoint. The caller of `checkpoint` updates them.
        self.high_watermarks = self._read(checkpoint.HIGH_WATERMARKS)
        self.meta = self._read_meta()
        names = disk.listdir(path)
        #: Folders of deleted logs that `upkeep` must remove.
        self.deleted_paths = [path / name for name in names if name.endswith(DELETE_SUFFIX)]
        #: Folders that existed at the start and for which `log` was not called yet.
        self._names = {name for name in names if _parse_name(name) is not None}
        if disk.exists(marker):
            disk.remove(marker)
            disk.sync_dir(path)
        storage.checkpoint_now = self.checkpoint

    @classmethod
    def open(
        cls,
        path: Path,
        disk: Disk,
        clock: Clock,
        random: Random,
        options: LogOptions | None = None,
    ) -> LogDirectory:
        """Open and lock the data directory, created if missing.

        Raises DirectoryInUseError, OSError.
        """
        options = options or LogOptions()
        disk.mkdir(path)
        lock_file = lock_directory(disk, path)
        files = FileCache(disk, options.open_files_max)
        folders = ReplicaFolders(disk, path)
        return cls(Storage(path, disk, clock, random, options, files, folders), lock_file)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoint.read_offsets(self.storage.disk, self.storage.path / name)
        except ValueError as error:
            # Without a checkpoint nothing is known to be durable, so all logs are read.
            _logger.error("%s; recovering all logs", error)
            self.was_clean = False
            return {}

    def _read_meta(self) -> dict[str, str]:
        path = self.storage.path / META
        if not self.storage.disk.exists(path):
            return {}
        lines = self.storage.disk.read(path).decode().splitlines()
        pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
        return {name.strip(): value.strip() for name, _, value in pairs}

    def identify(self, cluster_id: str, node_id: int) -> None:
        """Write this node's ids into the directory. Raises WrongDirectoryError if it has others."""
        wanted = {"cluster.id": cluster_id, "node.id": str(node_id)}
        for name, value in wanted.items():
            found = self.meta.get(name, value)
            if found != value:
                raise WrongDirectoryError(
                    f"{self.storage.path / META} says {name}={found}, but this is {value}: point"
                    " the broker at its own data folder, or remove this one if it is not needed"
                )
        if wanted.items() <= self.meta.items() and "directory.id" in self.meta:
            return
        directory_id = self.meta.get("directory.id") or format_topic_id(
            self.storage.random.getrandbits(128).to_bytes(16, "big")
        )
        self.meta = {"version": "1", **wanted, "directory.id": directory_id}
        text = "".join(f"{name}={value}\n" for name, value in self.meta.items())
        self.storage.disk.write_atomic(self.storage.path / META, text.encode())

    @property
    def directory_id(self) -> str:
        """The random id of the data directory; empty before the first `identify`."""
        return self.meta.get("directory.id", "")

    def has_lost(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Return whether the folder of a log with records is missing. Call it before `log`."""
        name = str(topic_partition)
        if name in self._names:
            return False
        folders = self.storage.replica_folders
        is_synced = topic_partition in self._recovery_points
        if not folders.is_missing:
            return folders.has(name, topic_id, durably=is_synced)
        # An earlier release did not list folders: the checkpoints name logs that had records.
        return is_synced or self.high_watermarks.get(topic_partition, 0) > 0

    def has_found(self, topic_partition: TopicPartition) -> bool:
        """Return whether the folder of a lost log was put back. Call it before `log`."""
        name = str(topic_partition)
        folders = self.storage.replica_folders
        return name in self._names and not folders.is_missing and not folders.has_name(name)

    # Logs

    @property
    def path(self) -> Path:
        return self.storage.path

    @property
    def all_logs(self) -> Collection[PartitionLog]:
        return self._logs.values()

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(topic_partition)

    def log(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        is_only_replica: bool = True,
    ) -> PartitionLog:
        """Return the partition's log, existing or new. Creates nothing on disk.

        A folder of another topic id is renamed for removal. A log whose folder is missing continues
        at its old end if it is the only replica. Otherwise it starts at 0 and fetches all records
        from its leader.
        """
        log = self._logs.get(topic_partition)
        if log is not None:
            return log
        name = str(topic_partition)
        exists = name in self._names
        self._names.discard(name)
        if exists and not self._is_of(topic_partition, topic_id):
            self._set_aside(name)
            self._forget(topic_partition)
            exists = False
        folder = LogFolder(self.storage, topic_partition, topic_id, exists=exists)
        log = PartitionLog(folder, config, is_recovered=self.was_clean or not exists)
        if not exists and not is_only_replica:
            self._forget(topic_partition)
        point = self._recovery_points.pop(topic_partition, 0)
        log.recovery_point = log.checkpointed_point = log.log_end_offset = point
        log.log_start_offset = self._log_starts.pop(topic_partition, 0)
        if log.is_recovered:
            # Otherwise the end is still unknown, and may be above the recovery point.
            log.log_start_offset = min(log.log_start_offset, log.log_end_offset)
        if not exists and log.log_end_offset:
            _logger.error("%s is missing: %d records are lost", log.directory, log.log_end_offset)
            log.log_start_offset = log.log_end_offset
        self._logs[topic_partition] = log
        return log

    def _is_of(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        directory = self.storage.path / str(topic_partition)
        found = read_topic_id(self.storage.disk, directory)
        return found is None or found == topic_id

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._recovery_points.pop(topic_partition, None)
        self._log_starts.pop(topic_partition, None)
        self.high_watermarks.pop(topic_partition, None)
        self.storage.are_points_stale = self.storage.are_starts_stale = True

    def recover(self, progress: Progress | None = None) -> None:
        """Repair every log that `log` has returned, after an unclean shutdown. Blocks.

        Until then the offsets of a log that is not loaded may be wrong.
        """
        pending = [log for log in self._logs.values() if not log.is_recovered]
        for number, log in enumerate(self._recovered(pending)):
            if progress is not None:
                progress(number + 1, len(pending), log.topic_partition)

    def _recovered(self, pending: list[PartitionLog]) -> Iterator[PartitionLog]:
        """Recover logs in the configured number of threads. Yields each one when it is done."""
        options = self.storage.options
        threads = min(options.recovery_threads, len(pending))
        open_files_max = max(options.open_files_max // max(threads, 1), _FILES_PER_THREAD_MIN)

        def recover(log: PartitionLog) -> PartitionLog:
            log.recover(FileCache(self.storage.disk, open_files_max))
            return log

        if threads <= 1:
            yield from map(recover, pending)
            return
        with ThreadPoolExecutor(threads, "millstream-recovery") as pool:
            try:
                yield from (
                    done.result()
                    for done in as_completed([pool.submit(recover, log) for log in pending])
                )
            except BaseException:
                # A log that cannot be read ends the start, so the other logs need no recovery.
                pool.shutdown(cancel_futures=True)
                raise

    def delete(self, topic_partition: TopicPartition) -> Path | None:
        """Delete a log. Returns its renamed folder, which `upkeep` removes."""
        log = self._logs.pop(topic_partition, None)
        self._forget(topic_partition)
        if log is None:
            return None
        self.storage.unflushed.pop(log, None)
        self.storage.flush_due.pop(log, None)
        exists = self.storage.disk.exists(log.directory)
        log.mark_deleted()
        try:
            self.storage.replica_folders.remove(str(topic_partition))
        except OSError as error:
            # At worst the log is reported as lost if the replica returns and is still empty.
            _logger.warning("the deletion of %s could not be recorded: %s", topic_partition, error)
        return self._set_aside(str(topic_partition)) if exists else None

    def _set_aside(self, name: str) -> Path:
        path, disk = self.storage.path, self.storage.disk
        while True:
            ending = f".{self.storage.random.getrandbits(128):032x}{DELETE_SUFFIX}"
            target = path / (name[: _NAME_BYTES_MAX - len(ending)] + ending)
            if not disk.exists(target):  # a seeded simulator repeats its random numbers
                break
        disk.rename(path / name, target)
        self.deleted_paths.append(target)
        return target

    def delete_strays(self) -> None:
        """Delete the folders for which `log` was not called. Call it once all logs are open.

        Also removes their offsets from the checkpoints, which may be older than a deletion shortly
        before a crash: a new topic of the same name must not start with them."""
        for name in sorted(self._names):
            topic_partition = _parse_name(name)
            assert topic_partition is not None
            self._forget(topic_partition)
            self._set_aside(name)
        self._names.clear()
        known = {*self._recovery_points, *self._log_starts, *self.high_watermarks}
        for topic_partition in known - self._logs.keys():
            self._forget(topic_partition)
        # Lost logs are no longer listed: this broker has left their ISRs.
        self.storage.replica_folders.rewrite(
            {str(log.topic_partition): log.topic_id for log in self._logs.values() if log.exists}
        )

    # Checkpoints and closing

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write recovery points, log start offsets and, if given, high watermarks durably.

        May run in a thread. Blocks.
        """
        self.checkpoint_recovery_points()
        self.checkpoint_log_starts()
        if high_watermarks is not None:
            self.checkpoint_high_watermarks(high_watermarks)

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points durably. May run in a thread. Blocks."""
        storage = self.storage
        with self._checkpoint_lock:
            storage.are_points_stale = False
            points, logs = dict(self._recovery_points), list(self._logs.values())
            points |= {
                log.topic_partition: log.recovery_point for log in logs if log.recovery_point
            }
            try:
                self._write(checkpoint.RECOVERY_POINTS, points)
            except OSError:
                storage.are_points_stale = True
                raise
            for log in logs:
                log.checkpointed_point = points.get(log.topic_partition, 0)

    def checkpoint_log_starts(self) -> None:
        """Write the log start offsets durably. May run in a thread. Blocks."""
        storage = self.storage
        with self._checkpoint_lock:
            storage.are_starts_stale = False
            starts, logs = dict(self._log_starts), list(self._logs.values())
            starts |= {
                log.topic_partition: log.log_start_offset for log in logs if log.log_start_offset
            }
            try:
                self._write(checkpoint.LOG_STARTS, starts)
            except OSError:
                storage.are_starts_stale = True
                raise

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the high watermarks durably. May run in a thread. Blocks."""
        with self._checkpoint_lock:
            self._write(checkpoint.HIGH_WATERMARKS, high_watermarks)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        checkpoint.write_offsets(self.storage.disk, self.storage.path / name, offsets)

    def close(
        self, clean: bool = True, high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Close all logs and unlock the data directory. Blocks.

        `clean`: flush everything and write the marker of a clean shutdown. Must not be called with
        `clean` while a log still needs recovery.
        """
        threads = self.storage.options.recovery_threads
        is_whole = clean and flush_all(self._logs.values(), threads)
        for log in self._logs.values():
            try:
                log.close(clean)
            except BrokerError:
                is_whole = False
        if clean:
            self.checkpoint(high_watermarks)
            # The next start uses each recovery point as the log end offset.
            if is_whole and all(
                log.is_recovered and log.recovery_point == log.log_end_offset
                for log in self._logs.values()
            ):
                self.storage.disk.write_atomic(self.storage.path / CLEAN_MARKER, _CLEAN_CONTENT)
        self.storage.files.close()
        self._lock_file.close()


def _parse_name(name: str) -> TopicPartition | None:
    """Return the partition that a folder name stands for, or None."""
    topic, dash, partition = name.rpartition("-")
    if dash and topic and partition.isdecimal() and partition.isascii():
        return TopicPartition(topic, int(partition))
    return None
