"""A simulated disk: files in memory that lose writes without a sync when power fails.

`Volume` is the disk of a machine and outlives its processes. `SimDisk` is the `env.disk.Disk` of
one process. Writes of a process survive its kill. When the machine loses power, each file keeps its
synced content. Of the writes since then it keeps none, the first few, the first few with the last
one torn, or a random selection with zeros in the gaps. A directory keeps the names of its last
sync, or all current names.

Calls can fail or take time. A slow call blocks the calling process, or only the thread if a thread
makes the call.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

from millstream.env.clock import Clock
from sim.loop import CURRENT, Process

Buffer: TypeAlias = bytes | bytearray | memoryview

_SPACE_BYTES = 1 << 40


class _Write(NamedTuple):
    """A write of `data` at a position, or a truncation to that position if `data` is None."""

    position: int
    data: bytes | None


class _Inode:
    __slots__ = ("data", "durable", "modified_ms", "pending")

    def __init__(self, modified_ms: int) -> None:
        #: The content that processes see.
        self.data = bytearray()
        #: The content on stable storage, and the writes since the last sync, in order.
        self.durable = bytearray()
        self.pending: list[_Write] = []
        self.modified_ms = modified_ms

    def write(self, data: bytes, position: int) -> None:
        self.pending.append(_Write(position, data))
        _apply(self.data, self.pending[-1])

    def truncate(self, size: int) -> None:
        if size != len(self.data):
            self.pending.append(_Write(size, None))
            _apply(self.data, self.pending[-1])

    def sync(self) -> None:
        for write in self.pending:
            _apply(self.durable, write)
        self.pending.clear()

    def lose_power(self, random: Random) -> None:
        for write in self._survivors(random):
            _apply(self.durable, write)
        self.pending.clear()
        self.data = bytearray(self.durable)

    def _survivors(self, random: Random) -> list[_Write]:
        pending, draw = self.pending, random.random()
        if not pending or draw < 0.4:
            return []
        if draw < 0.5:
            return [write for write in pending if random.random() < 0.5]
        kept = pending[: random.randrange(len(pending) + 1)]
        if draw < 0.7 and kept and kept[-1].data:
            last = kept.pop()
            assert last.data is not None
            kept.append(_Write(last.position, last.data[: random.randrange(len(last.data))]))
        return kept


def _apply(content: bytearray, write: _Write) -> None:
    position, data = write
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


class _Directory:
    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Directory] = {}
        #: The entries at the last sync.
        self.durable: dict[str, _Inode | _Directory] = {}

    def sync(self) -> None:
        self.durable = dict(self.entries)

    def lose_power(self, random: Random) -> None:
        if random.random() < 0.5:
            self.entries = dict(self.durable)
        self.sync()
        for _, entry in sorted(self.entries.items()):
            entry.lose_power(random)


class ReadErrors(NamedTuple):
    """The share of reads that fail, and their error."""

    share: float
    errno: int
    random: Random


class Volume:
    """A machine's disk."""

    __slots__ = (
        "clock",
        "errors",
        "power_failures",
        "random",
        "read_errors",
        "root",
        "slow_s",
        "unreadable",
    )

    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.root = _Directory()
        #: Share of writes and syncs that fail.
        self.errors = 0.0
        #: Maximum duration of a write or sync; the minimum is 0.
        self.slow_s = 0.0
        self.power_failures = 0
        #: Name of a directory whose files can't be read; empty for none.
        self.unreadable = ""
        #: Errors of reads of any file; None for no errors.
        self.read_errors: ReadErrors | None = None

    def prepare(self, name: str) -> None:
        """Create a directory at the root, as an operator does before the start."""
        self.root.entries[name] = _Directory()
        self.root.sync()

    def directories(self, name: str) -> list[str]:
        """Return the names of the directories in a directory at the root."""
        found = self.root.entries[name]
        assert isinstance(found, _Directory)
        return [each for each, entry in found.entries.items() if isinstance(entry, _Directory)]

    def delete(self, name: str, directory: str) -> None:
        """Delete a directory in a directory at the root, durably."""
        found = self.root.entries[name]
        assert isinstance(found, _Directory)
        del found.entries[directory]
        found.durable.pop(directory, None)

    def check_readable(self, path: Path, process: Process) -> None:
        """Raise OSError if a process can't read a file. The simulator gets no `read_errors`."""
        if self.unreadable and path.parent.name == self.unreadable:
            raise OSError(errno.EIO, "simulated failure of the disk", str(path))
        failing = self.read_errors
        if failing is None or CURRENT.get() is not process:
            return
        if failing.random.random() < failing.share:
            raise OSError(failing.errno, "simulated failure of a read", str(path))

    def lose_power(self) -> None:
        self.power_failures += 1
        self.root.lose_power(self.random)


class SimFile:
    """An open file of one process."""

    __slots__ = ("_disk", "_inode", "_is_readonly", "_path")

    def __init__(self, disk: SimDisk, path: Path, inode: _Inode, is_readonly: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode: _Inode | None = inode
        self._is_readonly = is_readonly

    def _open_inode(self) -> _Inode:
        if self._inode is None:
            raise OSError(errno.EBADF, "the file is closed")
        return self._inode

    def _writable(self) -> _Inode:
        inode = self._open_inode()
        if self._is_readonly:
            raise OSError(errno.EBADF, "the file is open for reading")
        return inode

    def write(self, data: Buffer, position: int) -> None:
        inode, data = self._writable(), bytes(data)
        try:
            self._disk.touch()
        except OSError:
            inode.write(data[: self._disk.volume.random.randrange(len(data) + 1)], position)
            raise
        inode.write(data, position)
        inode.modified_ms = self._disk.volume.clock.wall_ms()

    def pread(self, size: int, position: int) -> bytes:
        self._disk.check_readable(self._path)
        return bytes(memoryview(self._open_inode().data)[position : position + size])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        self._disk.check_readable(self._path)
        found = memoryview(self._open_inode().data)[position : position + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def size(self) -> int:
        return len(self._open_inode().data)

    def truncate(self, size: int) -> None:
        self._writable().truncate(size)

    def sync(self) -> None:
        inode = self._open_inode()
        self._disk.touch()
        inode.sync()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._inode = None


class SimDisk:
    """A process's view of a volume: `env.disk.Disk`."""

    __slots__ = ("_process", "volume")

    def __init__(self, volume: Volume, process: Process) -> None:
        self.volume = volume
        self._process = process

    def touch(self) -> None:
        """Fail or block a call that changes the disk, as the volume is set."""
        volume = self.volume
        if volume.slow_s:
            self._process.block(volume.random.random() * volume.slow_s)
        if volume.errors and volume.random.random() < volume.errors:
            raise OSError(errno.EIO, "simulated failure of the disk")

    def check_readable(self, path: Path) -> None:
        self.volume.check_readable(path, self._process)

    # Names

    def _find(self, path: Path) -> _Inode | _Directory | None:
        found: _Inode | _Directory | None = self.volume.root
        for part in path.parts[1:] if path.is_absolute() else path.parts:
            if not isinstance(found, _Directory):
                return None
            found = found.entries.get(part)
        return found

    def _directory(self, path: Path) -> _Directory:
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        if not isinstance(found, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return found

    def _inode(self, path: Path) -> _Inode:
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if not isinstance(found, _Inode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        return found

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> SimFile:
        if create and self._find(path) is None:
            self.touch()
            parent = self._directory(path.parent)
            parent.entries[path.name] = _Inode(self.volume.clock.wall_ms())
        elif self.volume.read_errors is not None:
            self.check_readable(path)
        return SimFile(self, path, self._inode(path), readonly)

    def read(self, path: Path) -> bytes:
        self.check_readable(path)
        return bytes(self._inode(path).data)

    def write_atomic(self, path: Path, data: Buffer) -> None:
        self.touch()
        inode = _Inode(self.volume.clock.wall_ms())
        inode.write(bytes(data), 0)
        inode.sync()
        # Durable as after a sync of the directory, but only this name.
        parent = self._directory(path.parent)
        parent.entries[path.name] = parent.durable[path.name] = inode

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def size(self, path: Path) -> int:
        return len(self._inode(path).data)

    def modified_ms(self, path: Path) -> int:
        return self._inode(path).modified_ms

    def listdir(self, path: Path) -> list[str]:
        return list(self._directory(path).entries)

    def mkdir(self, path: Path) -> None:
        current = self.volume.root
        for part in path.parts[1:] if path.is_absolute() else path.parts:
            found = current.entries.get(part)
            if found is None:
                found = current.entries[part] = _Directory()
            if not isinstance(found, _Directory):
                raise FileExistsError(errno.EEXIST, "is a file", str(path))
            current = found

    def rename(self, source: Path, target: Path) -> None:
        self.touch()
        entry = self._find(source)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        parent = self._directory(target.parent)
        del self._directory(source.parent).entries[source.name]
        parent.entries[target.name] = entry

    def remove(self, path: Path) -> None:
        found = self._find(path)
        if isinstance(found, _Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        if found is not None:
            self.touch()
            del self._directory(path.parent).entries[path.name]

    def remove_tree(self, path: Path) -> None:
        if self._find(path) is not None:
            self.touch()
            del self._directory(path.parent).entries[path.name]

    def sync_dir(self, path: Path) -> None:
        self.touch()
        self._directory(path).sync()

    def boot_id(self) -> str:
        return f"boot-{self.volume.power_failures}"

    def space(self, path: Path) -> tuple[int, int]:
        return _SPACE_BYTES, _SPACE_BYTES
