"""The sparse index from offsets to positions in a segment (`<base offset>.index`).

File: entries of 8 bytes, big endian: the last offset of a batch minus the segment's base offset
(int32), and the position of that batch in the `.log` file (int32). Both grow from entry to entry.
A batch gets an entry when more than `index.interval.bytes` were appended since the last entry. So a
short segment has none, and no entry points at position 0.
"""

from __future__ import annotations

import struct
from typing import Final

from millstream.log.files import FileHandle
from millstream.log.index.index_file import IndexFile

#: The format of one entry.
ENTRY: Final = struct.Struct(">ii")


class OffsetIndex(IndexFile):
    """The offset index of one segment."""

    __slots__ = ("base_offset",)

    def __init__(self, handle: FileHandle, base_offset: int) -> None:
        super().__init__(handle, ENTRY.size)
        self.base_offset = base_offset

    def append(self, last_offset: int, position: int) -> None:
        self.append_entry(ENTRY.pack(last_offset - self.base_offset, position))

    def lookup(self, number: int) -> tuple[int, int]:
        """Return the entry as (offset, position)."""
        relative, position = ENTRY.unpack(self.entry(number))
        return self.base_offset + relative, position

    def floor(self, offset: int) -> int:
        """Return a position from which a scan finds the first batch that reaches `offset`."""
        number = self.number_at(offset)
        return self.lookup(number)[1] if number >= 0 else 0

    def number_at(self, offset: int) -> int:
        """Return the number of the last entry at or below `offset`, or -1."""
        return self.search(offset, lambda i: self.lookup(i)[0])

    def number_at_position(self, position: int) -> int:
        """Return the number of the last entry for a batch at or below `position`, or -1."""
        return self.search(position, lambda i: self.lookup(i)[1])

    def keep_below_position(self, position: int) -> None:
        """Remove the entries for batches at `position` or later."""
        self.keep(self.number_at_position(position - 1) + 1)

    def is_sane(self, log_bytes: int) -> bool:
        """Return whether the last entry is plausible for a `.log` file of `log_bytes`."""
        if not self.is_whole:
            return False
        count = len(self)
        if not count:
            return True
        offset, position = self.lookup(count - 1)
        return offset >= self.base_offset and 0 < position < log_bytes
