"""The sparse index from timestamps to offsets in a segment (`<base offset>.timeindex`).

File: entries of 12 bytes, big endian: a timestamp (int64) and an offset minus the segment's base
offset (int32). No record up to that offset is later than that timestamp, and the batch that ends
there holds it. Both grow from entry to entry. When a segment is rolled or closed, its largest
timestamp is added, so that the last entry tells when the segment may expire.
"""

from __future__ import annotations

import struct
from typing import Final

from millstream.log.files import FileHandle
from millstream.log.index.index_file import IndexFile
from millstream.model.sentinel import NO_TIMESTAMP

#: The format of one entry.
ENTRY: Final = struct.Struct(">qi")


class TimeIndex(IndexFile):
    """The time index of one segment."""

    __slots__ = ("_last", "base_offset")

    def __init__(self, handle: FileHandle, base_offset: int) -> None:
        super().__init__(handle, ENTRY.size)
        self.base_offset = base_offset
        #: The last entry; None if unknown.
        self._last: tuple[int, int] | None = None

    def start(self) -> None:
        super().start()
        self._last = None

    def keep(self, count: int) -> None:
        super().keep(count)
        self._last = None

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if its timestamp is later than the last one."""
        last_timestamp, last_offset = self.last()
        if timestamp > last_timestamp and (offset > last_offset or not len(self)):
            self.append_entry(ENTRY.pack(timestamp, offset - self.base_offset))
            self._last = (timestamp, offset)

    def last(self) -> tuple[int, int]:
        """Return the last entry as (timestamp, offset); (-1, base offset) for an empty index."""
        last = self._last
        if last is None:
            count = len(self)
            last = self.lookup(count - 1) if count else (NO_TIMESTAMP, self.base_offset)
            self._last = last
        return last

    def lookup(self, number: int) -> tuple[int, int]:
        """Return the entry as (timestamp, offset)."""
        timestamp, relative = ENTRY.unpack(self.entry(number))
        return timestamp, self.base_offset + relative

    def floor(self, timestamp: int) -> int:
        """Return an offset below which every record is earlier than `timestamp`."""
        number = self.search(timestamp - 1, lambda i: self.lookup(i)[0])
        return self.lookup(number)[1] if number >= 0 else self.base_offset

    def count_below(self, offset: int) -> int:
        """Return the number of entries for offsets below `offset`."""
        return self.search(offset - 1, lambda i: self.lookup(i)[1]) + 1

    def is_sane(self) -> bool:
        """Return whether the last entry is plausible."""
        if not self.is_whole:
            return False
        count = len(self)
        if not count:
            return True
        timestamp, offset = self.lookup(count - 1)
        return timestamp >= 0 and offset >= self.base_offset
