"""What all logs of one data directory share: disk, clock, open files, and sets of logs to flush.

Owned by `LogDirectory`. A log adds itself to the sets here instead of being polled, so that idle
logs cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.env.clock import Clock
from millstream.env.disk import Disk
from millstream.env.random import Random
from millstream.log.directory.replica_folders import ReplicaFolders
from millstream.log.files import FileCache
from millstream.model.topic import TopicPartition

if TYPE_CHECKING:
    from millstream.log.log import PartitionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Settings of the broker, not of a topic, that the log layer needs."""

    #: Most files that logs hold open at a time.
    open_files_max: int = 2048
    #: A producer id expires after this time without a batch.
    producer_id_expiration_ms: int = 86_400_000
    #: Threads that recover logs after an unclean shutdown, and flush them at shutdown.
    recovery_threads: int = 2
    #: Most bytes that the records of one batch may decompress to.
    decompressed_bytes_max: int = 256 << 20


@dataclass(slots=True)
class Storage:
    """The resources of one data directory, and the logs that need work in the background."""

    path: Path
    disk: Disk
    clock: Clock
    random: Random
    options: LogOptions
    files: FileCache
    #: The log folders that must exist.
    replica_folders: ReplicaFolders
    #: Logs of topics with `flush.ms` or `flush.messages` that have unflushed appends.
    unflushed: dict[PartitionLog, None] = field(default_factory=dict)
    #: Logs that rolled a segment, or whose files changed, since their last flush. They are flushed
    #: whatever `flush.ms` says, so that recovery reads little.
    flush_due: dict[PartitionLog, None] = field(default_factory=dict)
    #: Writes the recovery points durably. Called before a log that was truncated below its recovery
    #: point grows again.
    checkpoint_now: Callable[[], None] = lambda: None
    #: Called when a log goes offline: it rejects appends until the broker restarts.
    on_failure: Callable[[TopicPartition], None] = lambda _: None
    #: Whether a recovery point changed since the last checkpoint.
    are_points_stale: bool = False
    #: Whether a log start offset changed since the last checkpoint.
    are_starts_stale: bool = False

    def configure(self, options: LogOptions) -> None:
        """Apply options that were changed at run time."""
        self.options = options
        self.files.open_files_max = options.open_files_max
