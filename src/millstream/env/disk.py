"""The disk: the only access to files.

Durability, for every implementation: data written through a `File` is visible to later reads of
this process at once and survives the process being killed. It survives the machine losing power
only after `File.sync` of that file returned, and a name (created, renamed, removed) only after
`Disk.sync_dir` of its directory returned. `write_atomic` does all of that itself.

All calls block. `write` and `pread` of recent data are page-cache speed and are made on
the event loop; `sync`, `write_atomic` and walks over many files belong in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Linux writes a new id at every boot.
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class File(Protocol):
    """An open file. Threads do not share it, but `sync` may run beside any other call."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`. On failure (disk full) raises OSError; bytes past
        `position` are then unspecified, and the caller truncates."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position`; return the bytes read, fewer only at the end."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once data and length are on stable storage (fdatasync)."""
        ...

    def fileno(self) -> int:
        """Return the descriptor for sendfile, or -1 if there is none (the simulator)."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        """Open a file. With `create`, create it if it does not exist."""
        ...

    def read(self, path: Path) -> bytes:
        """Return the whole content of a small file."""
        ...

    def write_atomic(self, path: Path, data: Buffer) -> None:
        """Replace `path` by `data`, durably: after a crash the file is the old or the new one."""
        ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> int: ...

    def listdir(self, path: Path) -> list[str]: ...

    def mkdir(self, path: Path) -> None:
        """Create a directory and its parents, unless they exist."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory, replacing a target file."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content, if it exists."""
        ...

    def sync_dir(self, path: Path) -> None: ...

    def boot_id(self) -> str:
        """Return an id that changes when the machine may have lost unsynced data; empty if the
        system does not tell."""
        ...

    def space(self, path: Path) -> tuple[int, int]:
        """Return the total and the usable bytes of the file system of `path`."""
        ...


class SystemFile:
    """A file by its descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        if written != len(data):
            self._write_rest(memoryview(data), written, position)

    def _write_rest(self, data: memoryview, written: int, position: int) -> None:
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], position + written)

    def pread(self, size: int, position: int) -> bytes:
        return os.pread(self._fd, size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SystemDisk:
    """The machine's file system."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDONLY if readonly else os.O_RDWR)
        if create:
            flags |= os.O_CREAT
        return SystemFile(os.open(path, flags, 0o644))

    def read(self, path: Path) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: Path, data: Buffer) -> None:
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self.sync_dir(Path(path).parent)

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def listdir(self, path: Path) -> list[str]:
        return os.listdir(path)

    def mkdir(self, path: Path) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: Path) -> None:
        if not os.path.lexists(path):
            return
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                self.remove_tree(Path(entry.path))
            else:
                os.unlink(entry.path)
        os.rmdir(path)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID) as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    def space(self, path: Path) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _entries(path: Path) -> Iterable[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return list(entries)
