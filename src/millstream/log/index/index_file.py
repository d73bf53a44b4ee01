"""A file of fixed-size, sorted entries: the common part of all indexes.

The index of the active segment lives in memory and is written to its file when the log is flushed,
rolled or closed. The index of any other segment lives in its file and is searched there with a few
small reads, so it costs no memory.

Nothing here is trusted after a crash. Recovery rebuilds the entries above the recovery point, and
an index that fails its checks is rebuilt from the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from millstream.log.files import FileHandle

#: Entries per read while an index is searched in its file.
_BLOCK_ENTRIES: Final = 256


class IndexFile:
    """Fixed-size entries by number. A subclass defines their fields."""

    __slots__ = (
        "_block",
        "_block_start",
        "_memory",
        "_written_bytes",
        "entry_bytes",
        "handle",
    )

    def __init__(self, handle: FileHandle, entry_bytes: int) -> None:
        self.handle = handle
        self.entry_bytes = entry_bytes
        #: All entries while the segment is open for appends, otherwise None.
        self._memory: bytearray | None = None
        #: Bytes of `_memory` that are in the file. Without memory: the size of the file, or -1 if
        #: unknown.
        self._written_bytes = -1
        #: The last block read from the file, and the number of its first entry.
        self._block = b""
        self._block_start = 0

    def __len__(self) -> int:
        memory = self._memory
        if memory is not None:
            return len(memory) // self.entry_bytes
        if self._written_bytes < 0:
            self._written_bytes = self.handle.get().size()
        return self._written_bytes // self.entry_bytes

    @property
    def is_in_memory(self) -> bool:
        return self._memory is not None

    @property
    def is_whole(self) -> bool:
        """Whether the file's size is a whole number of entries."""
        return self._memory is not None or (self.handle.get().size() % self.entry_bytes == 0)

    def entry(self, number: int) -> bytes | bytearray:
        """Return the bytes of one entry."""
        start = number * self.entry_bytes
        if self._memory is not None:
            return self._memory[start : start + self.entry_bytes]
        start -= self._block_start * self.entry_bytes
        if not 0 <= start < len(self._block):
            self._block_start = number // _BLOCK_ENTRIES * _BLOCK_ENTRIES
            self._block = self.handle.get().pread(
                _BLOCK_ENTRIES * self.entry_bytes, self._block_start * self.entry_bytes
            )
            start = (number - self._block_start) * self.entry_bytes
        return self._block[start : start + self.entry_bytes]

    def append_entry(self, data: bytes) -> None:
        """Add an entry at the end. Only after `start` or `open_memory`."""
        assert self._memory is not None
        self._memory += data

    def start(self) -> None:
        """Start an empty index in memory. `write_out` overwrites an existing file."""
        self._memory = bytearray()
        self._written_bytes = 0
        self._forget_block()

    def open_memory(self) -> None:
        """Load all entries into memory, to append to them."""
        if self._memory is not None:
            return
        file = self.handle.get()
        size = file.size() // self.entry_bytes * self.entry_bytes
        self._memory = bytearray(file.pread(size, 0)) if size else bytearray()
        self._written_bytes = size

    def write_out(self) -> None:
        """Write new entries to the file, in the page cache. The caller syncs."""
        memory = self._memory
        if memory is None:
            return
        file = self.handle.create()
        if self._written_bytes == 0 and file.size():
            file.truncate(0)
        if self._written_bytes < len(memory):
            file.write(memory[self._written_bytes :], self._written_bytes)
        self._written_bytes = len(memory)

    @property
    def unwritten_count(self) -> int:
        if self._memory is None:
            return 0
        return (len(self._memory) - self._written_bytes) // self.entry_bytes

    @property
    def is_written(self) -> bool:
        return self._memory is None or self._written_bytes == len(self._memory)

    def seal(self) -> None:
        """Write all entries to the file and free the memory."""
        self.write_out()
        self._memory = None

    def keep(self, count: int) -> None:
        """Keep the first `count` entries, in memory and in the file."""
        size = count * self.entry_bytes
        self._forget_block()
        if self._memory is not None:
            del self._memory[size:]
            self._written_bytes = min(self._written_bytes, size)
        else:
            self._written_bytes = size
        file = self.handle.create()
        if file.size() > size:
            file.truncate(size)

    def search(self, target: int, key: Callable[[int], int]) -> int:
        """Return the number of the last entry whose `key(number)` is at most `target`, or -1."""
        low, high = 0, len(self)
        block = len(self._block) // self.entry_bytes
        if self._memory is None and block:
            # A sequential reader searches near its last result.
            first, last = self._block_start, self._block_start + block - 1
            if key(first) <= target and target < key(last):
                low, high = first, last
        return bisect_right(range(high), target, low, key=key) - 1

    def _forget_block(self) -> None:
        self._block, self._block_start = b"", 0
