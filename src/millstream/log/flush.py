"""One flush of one log, between the event loop and a thread.

`PartitionLog.begin_flush` decides on the loop what must reach stable storage, `FlushTicket.run`
waits for the disk in a thread, `PartitionLog.finish_flush` moves the recovery point on the loop.

A ticket holds pins only between `pin`, which is the last step of making it and takes all pins or
none, and `release`. So a ticket that can't be made (a full disk) pins nothing, and every ticket
that was begun must be finished, also when `run` failed.

Order: the data, then the indexes and snapshots, then the names in the directory, then the epochs.
Only when all of it is there may the recovery point move.

After a sync that failed nobody knows what is on the disk, and asking again may get a wrong yes. Two
other failures can be retried. A file that can't be opened for lack of descriptors or memory was not
synced at all. The epochs are written whole, in place of the old ones, which fails on a full disk.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.log.directory import checkpoint
from millstream.log.files import FileHandle

#: A file can't be opened for now. No sync fails with these.
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class FlushTicket:
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
        #: Everything below it is on stable storage once `run` returned.
        self.end_offset = end_offset
        self.generation = generation
        #: What the epoch checkpoint must hold; None if it does already.
        self.epochs: list[tuple[int, int]] | None = None
        #: Why something could not be synced.
        self.error: OSError | None = None
        #: Why the flush is to be made again: nothing failed to be synced, but some was not.
        self.unfinished: OSError | None = None

    def add(self, handle: FileHandle) -> None:
        """Sync a file."""
        self._handles.append(handle)

    @property
    def paths(self) -> list[Path]:
        """The small files."""
        return self._paths

    @property
    def is_name_unsynced(self) -> bool:
        """Whether the names in the directory are part of the flush."""
        return self._is_name_unsynced

    def add_path(self, path: Path) -> None:
        """Sync a small file that no handle stands for."""
        self._paths.append(path)

    def pin(self) -> None:
        """Open all files that were added, and keep them open until `release`. Raises OSError, and
        pins none of them then."""
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
        """Wait until all is on stable storage. Blocks; safe beside the event loop."""
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
            # Else the thread that syncs for all logs would end, and nobody would be told.
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
            return  # dropped meanwhile with what it belongs to
        try:
            file.sync()
        finally:
            file.close()

    def release(self) -> None:
        for handle in self._handles:
            handle.unpin()
        self._handles.clear()
