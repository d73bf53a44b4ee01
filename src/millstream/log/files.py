"""A bounded cache of open files.

Owns every file descriptor of the log layer. A `FileHandle` names a file and opens it at the first
`get`. The cache may close the descriptor of any handle that is not pinned, so no caller keeps a
`File` across a return to the event loop without a pin.

Eviction is second chance: a sweep spares a handle that was used since the last one. That costs the
append path one attribute store; a strict LRU would cost a list operation.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from millstream.env.disk import Disk, File


class FileHandle:
    """A file by name, open or closed."""

    __slots__ = ("_cache", "file", "in_ring", "is_closing", "path", "pins", "used")

    def __init__(self, cache: FileCache, path: Path) -> None:
        self._cache = cache
        self.path = path
        #: The open file, or None while the handle holds no descriptor.
        self.file: File | None = None
        self.used = False
        #: While above zero the cache does not close the file: a thread may be syncing it.
        self.pins = 0
        self.in_ring = False
        #: `close` was called while pinned. The last `unpin` closes the file.
        self.is_closing = False

    def get(self) -> File:
        """Return the file, opened if needed. Raises OSError (FileNotFoundError) as `Disk.open`."""
        self.used = True
        file = self.file
        return file if file is not None else self._open(create=False)

    def create(self) -> File:
        """Return the file, created if it does not exist."""
        self.used = True
        file = self.file
        return file if file is not None else self._open(create=True)

    def _open(self, *, create: bool) -> File:
        file = self.file = self._cache.disk.open(self.path, create=create)
        self._cache.admit(self)
        return file

    def rename(self, target: Path) -> None:
        """Rename the file on disk. An open descriptor stays valid."""
        self._cache.disk.rename(self.path, target)
        self.path = target

    def close(self) -> None:
        """Close the descriptor, if pinned at the last `unpin`. The handle stays usable."""
        if self.pins:
            self.is_closing = True
        elif self.file is not None:
            self._cache.release(self)

    def pin(self) -> None:
        """Open the file and keep it open until `unpin`."""
        self.get()
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        if self.is_closing and not self.pins:
            self.is_closing = False
            self.close()


class FileCache:
    """The open handles. One per data directory, used from the event loop only."""

    __slots__ = ("_ring", "disk", "open_files", "open_files_max")

    def __init__(self, disk: Disk, open_files_max: int) -> None:
        self.disk = disk
        self.open_files_max = open_files_max
        self.open_files = 0
        #: Handles in sweep order. The sweep removes handles that were closed since.
        self._ring: deque[FileHandle] = deque()

    def handle(self, path: Path) -> FileHandle:
        return FileHandle(self, path)

    def admit(self, handle: FileHandle) -> None:
        """Count a handle that was just opened, and close others above the limit."""
        self.open_files += 1
        if not handle.in_ring:
            handle.in_ring = True
            self._ring.append(handle)
        if self.open_files > self.open_files_max or len(self._ring) > 2 * self.open_files_max:
            self._sweep(handle)

    def release(self, handle: FileHandle) -> None:
        file, handle.file = handle.file, None
        if file is not None:
            self.open_files -= 1
            file.close()

    def _sweep(self, newest: FileHandle) -> None:
        # Two rounds: the first may only clear marks. Pinned files may exceed the limit.
        for _ in range(2 * len(self._ring)):
            if self.open_files <= self.open_files_max and len(self._ring) <= self.open_files_max:
                return
            handle = self._ring.popleft()
            if handle.file is None:
                handle.in_ring = False
            elif handle.used or handle.pins or handle is newest:
                handle.used = False
                self._ring.append(handle)
            else:
                handle.in_ring = False
                self.release(handle)

    def close(self) -> None:
        while self._ring:
            handle = self._ring.popleft()
            handle.in_ring = False
            self.release(handle)


def write_small_file(disk: Disk, path: Path, data: bytes) -> None:
    """Write a whole file in place, without syncing it. A torn write must be detectable."""
    file = disk.open(path, create=True)
    try:
        if file.size():
            file.truncate(0)
        file.write(data, 0)
    finally:
        file.close()
