"""Open files under a bound.

Owns every descriptor of the log layer: a `FileHandle` stands for a file by name, costs no
descriptor until `get` opens it, and may lose its descriptor to another one at any time unless it
is pinned. Nobody keeps a `File` across a return to the event loop without a pin.

Eviction is second chance: a handle that was used since the last sweep is passed over once. That
costs the append path one attribute store, where a strict LRU would cost a list operation.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from millstream.env.disk import Disk, File


class FileHandle:
    """A file by name, open or not."""

    __slots__ = ("_cache", "file", "in_ring", "is_closing", "path", "pins", "used")

    def __init__(self, cache: FileCache, path: Path) -> None:
        self._cache = cache
        self.path = path
        #: The open file, or None while the handle holds no descriptor.
        self.file: File | None = None
        self.used = False
        #: While above zero the descriptor is not taken away (a thread may be syncing it).
        self.pins = 0
        self.in_ring = False
        #: Closed while pinned: the last unpin closes it.
        self.is_closing = False

    def get(self) -> File:
        """The open file; opens it if needed. Raises OSError (FileNotFoundError) as `Disk.open`."""
        self.used = True
        file = self.file
        return file if file is not None else self._open(create=False)

    def create(self) -> File:
        """The open file; makes an empty one if there is none."""
        self.used = True
        file = self.file
        return file if file is not None else self._open(create=True)

    def _open(self, *, create: bool) -> File:
        file = self.file = self._cache.disk.open(self.path, create=create)
        self._cache.admit(self)
        return file

    def rename(self, target: Path) -> None:
        """Rename on disk; an open descriptor stays valid."""
        self._cache.disk.rename(self.path, target)
        self.path = target

    def close(self) -> None:
        """Give the descriptor back, if pinned then once it no longer is. Stays usable."""
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
    """The handles that are open now. One per data folder, used from the event loop only."""

    __slots__ = ("_ring", "disk", "open_files", "open_files_max")

    def __init__(self, disk: Disk, open_files_max: int) -> None:
        self.disk = disk
        self.open_files_max = open_files_max
        self.open_files = 0
        #: Handles in sweep order. One that was closed by hand stays here until the sweep meets it.
        self._ring: deque[FileHandle] = deque()

    def handle(self, path: Path) -> FileHandle:
        return FileHandle(self, path)

    def admit(self, handle: FileHandle) -> None:
        """Count a handle that was just opened, and close others if that is one too many."""
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
        # Two rounds: the first may only clear the marks. With everything pinned the bound yields.
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
