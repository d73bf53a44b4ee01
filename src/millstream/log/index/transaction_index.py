"""The aborted transactions of a segment (`<base offset>.txnindex`).

File: entries of 34 bytes, big endian: version (int16, 0), producer id (int64), first offset of the
transaction, offset of the marker that aborted it, and the last stable offset after that marker
(int64 each). A transaction is listed in the segment of its marker, so the marker offsets grow from
entry to entry. A segment without aborted transactions has no file.

The last stable offset tells a reader where to stop: every transaction that ends later began at that
offset or above it.

Like the other indexes it lives in memory while its segment is active. Unlike them, every flush
writes all of its entries, because only a replay of the producers could rebuild one.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millstream.log.files import FileHandle
from millstream.log.index.index_file import IndexFile

#: The format of one entry.
ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """The records of `producer_id` in [first_offset, last_offset] were never committed."""

    producer_id: int
    first_offset: int
    #: Offset of the marker.
    last_offset: int
    last_stable_offset: int


class TransactionIndex(IndexFile):
    """The transaction index of one segment."""

    __slots__ = ("base_offset",)

    def __init__(self, handle: FileHandle, base_offset: int) -> None:
        super().__init__(handle, ENTRY.size)
        self.base_offset = base_offset

    def append(self, aborted: AbortedTransaction) -> None:
        self.append_entry(ENTRY.pack(_VERSION, *aborted))

    def lookup(self, number: int) -> AbortedTransaction:
        """Return one entry."""
        return AbortedTransaction._make(ENTRY.unpack(self.entry(number))[1:])

    def overlapping(
        self, from_offset: int, upper_offset: int, found: list[AbortedTransaction]
    ) -> bool:
        """Add the transactions with records in [from_offset, upper_offset) to `found`.

        Returns whether later segments may list more of them.
        """
        first = self.search(from_offset - 1, self._last_offset) + 1
        for number in range(first, len(self)):
            aborted = self.lookup(number)
            if aborted.first_offset < upper_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= upper_offset:
                return False
        return True

    def keep_below(self, offset: int) -> None:
        """Remove the transactions whose marker is at `offset` or later."""
        count = self.search(offset - 1, self._last_offset) + 1
        if count < len(self):
            self.keep(count)

    def _last_offset(self, number: int) -> int:
        return self.lookup(number).last_offset

    def is_sane(self) -> bool:
        """Return whether all entries are whole, of a known version, and in order of markers."""
        if self._memory is not None:
            return True
        if self._file_bytes() % self.entry_bytes:
            return False
        previous = self.base_offset - 1
        for number in range(len(self)):
            version, _, first, last, stable = ENTRY.unpack(self.entry(number))
            is_true = 0 <= first < last and previous < last and 0 <= stable <= last + 1
            if version != _VERSION or not is_true:
                return False
            previous = last
        return True

    # A missing file is an empty index. An index without entries creates no file.

    def __len__(self) -> int:
        if self._memory is None and self._written_bytes < 0:
            self._written_bytes = self._file_bytes()
        return super().__len__()

    def start(self) -> None:
        super().start()
        if self._file_bytes():
            self.handle.get().truncate(0)

    def open_memory(self) -> None:
        if self._memory is not None:
            return
        if self._file_bytes():
            super().open_memory()
        else:
            super().start()

    def write_out(self) -> None:
        if not self.is_written:
            super().write_out()

    def _file_bytes(self) -> int:
        try:
            return self.handle.get().size()
        except FileNotFoundError:
            return 0
