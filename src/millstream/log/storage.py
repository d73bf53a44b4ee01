"""What all logs of one data folder share: the seams, the open files, and who needs attention.

Owned by `LogDirectory`; `PartitionLog` writes its name into the sets here instead of being polled,
so that idle logs cost nothing.
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

    #: Most descriptors that logs hold open at a time.
    open_files_max: int = 2048
    #: A producer id that was silent for this long is forgotten.
    producer_id_expiration_ms: int = 86_400_000
    #: Threads that recover logs after an unclean stop, and flush them when the folder is closed.
    recovery_threads: int = 2
    #: Most bytes that the records of one batch may decompress to where they are looked at.
    decompressed_bytes_max: int = 256 << 20


@dataclass(slots=True)
class Storage:
    path: Path
    disk: Disk
    clock: Clock
    random: Random
    options: LogOptions
    files: FileCache
    #: The folders of logs that were made.
    replica_folders: ReplicaFolders
    #: Logs with appends that were not flushed.
    unflushed: dict[PartitionLog, None] = field(default_factory=dict)
    #: Logs that have closed a segment, or whose files changed, since they were last flushed: due
    #: at once, whatever `flush.ms` says, so that recovery never reads more than what is recent.
    flush_due: dict[PartitionLog, None] = field(default_factory=dict)
    #: Writes the recovery points durably: called before a log may grow again after it was cut below
    #: its own.
    checkpoint_now: Callable[[], None] = lambda: None
    #: Told when a log goes offline: it takes no more appends until the broker restarts.
    on_failure: Callable[[TopicPartition], None] = lambda _: None
    #: Whether a recovery point changed since the recovery points were last written.
    are_points_stale: bool = False
    #: Whether a log start offset changed since the log start offsets were last written.
    are_starts_stale: bool = False

    def configure(self, options: LogOptions) -> None:
        """Apply options that were changed at run time."""
        self.options = options
        self.files.open_files_max = options.open_files_max
