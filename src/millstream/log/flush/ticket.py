"""One flush of one log, handed from the event loop to a thread and back.

`PartitionLog.begin_flush` decides on the loop what must reach stable storage. `FlushTicket.run`
waits for the disk in a thread. `PartitionLog.finish_flush` moves the recovery point on the loop.

A ticket holds pins only between `pin` and `release`. `pin` is the last step of making a ticket and
takes all pins or none. So a ticket that cannot be made (a full disk) pins nothing, and every ticket
that was made must be finished, even when `run` failed.

Order: the data, then indexes and snapshots, then the names in the directory, then the epochs. The
recovery point may move only after all of these.

After a failed sync the state of the disk is unknown, and a second sync may succeed wrongly. Two
other failures can be retried: a file that cannot be opened for lack of descriptors or memory was
not synced at all, and the epochs are written as a whole new file, which fails on a full disk.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.log.directory import checkpoint
from millstream.log.files import FileHandle

#: Errors of `open` that pass by themselves. No sync fails with these.
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class FlushTicket:
    """The files that one flush of one log syncs."""

    __slots__ = (
        "_directory",
        "_disk",
        "_handles",
        "_is_name_unsynced",
        "_paths",
        "end_offset",
        "epochs",
        "error",
        "generation",
        "unfinished",
    )

    def __init__(
        self, disk: Disk, directory: Path, end_offset: int, generation: int, is_name_unsynced: bool
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._handles: list[FileHandle] = []
        self._paths: list[Path] = []
        self._is_name_unsynced = is_name_unsynced
        #: Everything below this offset is on stable storage once `run` has succeeded.
        self.end_offset = end_offset
        self.generation = generation
        #: New content of the epoch checkpoint; None if the file is up to date.
        self.epochs: list[tuple[int, int]] | None = None
        #: Why a sync failed.
        self.error: OSError | None = None
        #: Why the flush must be retried: no sync failed, but not everything was synced.
        self.unfinished: OSError | None = None

    def add(self, handle: FileHandle) -> None:
        """Add a file to sync."""
        self._handles.append(handle)

    @property
    def paths(self) -> list[Path]:
        """The small files to sync."""
        return self._paths

    @property
    def is_name_unsynced(self) -> bool:
        """Whether the flush syncs the names in the directory."""
        return self._is_name_unsynced

    def add_path(self, path: Path) -> None:
        """Add a small file that has no handle."""
        self._paths.append(path)

    def pin(self) -> None:
        """Open all added files until `release`. Pins none of them if it raises OSError."""
        pinned: list[FileHandle] = []
        try:
            for handle in self._handles:
                handle.pin()
                pinned.append(handle)
        except OSError:
            for handle in pinned:
                handle.unpin()
            raise

    def run(self) -> None:
        """Sync all files. Blocks; may run in a thread beside the event loop."""
        try:
            for handle in self._handles:
                assert handle.file is not None  # pinned
                handle.file.sync()
            for path in self._paths:
                self._sync_path(path)
            if self._is_name_unsynced:
                self._disk.sync_dir(self._directory)
                self._disk.sync_dir(self._directory.parent)
        except OSError as error:
            if error.errno in _SHORTAGES:
                self.unfinished = error
            else:
                self.error = error
        except Exception as error:  # noqa: BLE001  # `finish_flush` logs it
            # Otherwise the thread that syncs for all logs would end unnoticed.
            self.error = OSError(f"an unexpected error: {error!r}")
        else:
            self._write_epochs()

    def _write_epochs(self) -> None:
        if self.epochs is None:
            return
        try:
            path = self._directory / checkpoint.LEADER_EPOCHS
            checkpoint.write_epochs(self._disk, path, self.epochs)
        except OSError as error:
            self.unfinished = error

    def _sync_path(self, path: Path) -> None:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return  # removed since, together with its segment
        try:
            file.sync()
        finally:
            file.close()

    def release(self) -> None:
        """Unpin all files."""
        for handle in self._handles:
            handle.unpin()
        self._handles.clear()
