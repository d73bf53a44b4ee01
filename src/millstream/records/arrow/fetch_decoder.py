"""Decoding the record sets of Fetch responses for one partition into rows.

Owns the walk over batches: each whole batch is checked, skipped if `read_committed` readers must
not see it, decompressed within a limit, and decoded by `arrow_decode`. Knows which offset to fetch
next, also after control batches, aborted batches and compacted offsets. No I/O.

    decoder = FetchDecoder(start, end, columns)
    while not decoder.is_done:
        ...                           fetch records, aborted from decoder.next_offset on
        for rows in decoder.decode(records, aborted):
            ...                       full rows
    rows = decoder.pop_rows()         the remaining rows, if any

Aborted transactions are skipped as in Kafka's consumers: from the first offset that the response
names for a producer on, its transactional batches are skipped until that producer's abort marker.
The list belongs to one response and is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millstream.model.sentinel import INT32_MAX
from millstream.records.arrow.arrow_decode import RecordRun, Rows
from millstream.records.arrow.column import Columns
from millstream.records.batch import BatchHeader, CorruptBatch, check_crc, iterate_batches
from millstream.records.control import read_marker
from millstream.records.crc import Buffer
from millstream.records.record import plain_view

_DATA_CAPACITY: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits of the memory for rows."""

    rows_max: int = 8192
    #: Rows are full once their records reach this size; the last record may exceed it.
    bytes_max: int = 16 * 1024 * 1024
    #: Largest decompressed size of one batch.
    plain_bytes_max: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.rows_max < 1 or self.bytes_max < 1 or self.plain_bytes_max < 1:
            raise ValueError("row limits must be at least 1")
        if self.bytes_max + self.plain_bytes_max > INT32_MAX:
            raise ValueError(f"bytes_max and plain_bytes_max may be {INT32_MAX} together at most")


class FetchDecoder:
    """Decodes the records of one partition with offsets in `[start, end)`."""

    def __init__(
        self,
        start: int,
        end: int,
        columns: Columns | None = None,
        limits: RowLimits | None = None,
        *,
        is_crc_checked: bool = True,
    ) -> None:
        self._start = start
        self._end = end
        self._columns = columns or Columns()
        self._limits = limits or RowLimits()
        self._is_crc_checked = is_crc_checked
        self._rows: Rows | None = None
        #: Size of the data buffer of the last rows, reused for the next.
        self._data_capacity = _DATA_CAPACITY
        #: The offset to fetch next; never beyond the range.
        self.next_offset = start
        #: Whole batches decoded so far. If a response with bytes adds none, its first batch was
        #: larger than the requested size.
        self.batches = 0

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self._end

    def decode(
        self, records: Buffer, aborted: Iterable[tuple[int, int]] | None = None
    ) -> Iterator[Rows]:
        """Yield every full `Rows`. Other rows wait for the next record set or for `pop_rows`.

        `records` may end in the middle of a batch. `aborted` is the response's list of (producer
        id, first offset) for `read_committed`. The iterator must be run to its end. Raises
        CorruptBatch, which names the offset; `pop_rows` still returns the rows before it.
        """
        hidden = _HiddenBatches(aborted or ())
        try:
            for position, header in iterate_batches(records, verify_crc=False):
                if self.is_done:
                    return
                yield from self._decode_batch(records, position, header, hidden)
                self.next_offset = min(max(header.next_offset, self.next_offset), self._end)
                self.batches += 1
        except CorruptBatch as error:
            raise CorruptBatch(f"at offset {self.next_offset}: {error.message}") from error

    def pop_rows(self) -> Rows | None:
        """Return the rows that `decode` has not yielded, if any."""
        rows, self._rows = self._rows, None
        return rows if rows is not None and rows.count else None

    def _decode_batch(
        self, records: Buffer, position: int, header: BatchHeader, hidden: _HiddenBatches
    ) -> Iterator[Rows]:
        if self._is_crc_checked:
            check_crc(records, header, position)
        if hidden.covers(records, position, header):
            return
        if header.is_control or header.last_offset < self.next_offset:
            return
        run = self._open(records, position, header)
        while run.remaining:
            if self._rows is None:
                self._rows = self._new_rows()
            run.read_into(self._rows, self.next_offset, self._end)
            if self._rows.is_full():
                self._data_capacity = self._rows.size
                yield self._rows
                self._rows = None

    def _new_rows(self) -> Rows:
        limits = self._limits
        return Rows(self._columns, limits.rows_max, limits.bytes_max, self._data_capacity)

    def _open(self, records: Buffer, position: int, header: BatchHeader) -> RecordRun:
        return RecordRun(
            plain_view(records, header, self._limits.plain_bytes_max, position),
            header.count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp if header.is_append_time else None,
        )


class _HiddenBatches:
    """The batches of one response that belong to aborted transactions."""

    __slots__ = ("_open", "_pending")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        #: (first offset, producer id) of later transactions, the nearest last.
        self._pending = sorted(((first, producer) for producer, first in aborted), reverse=True)
        #: Producers with an aborted transaction whose marker was not reached.
        self._open: set[int] = set()

    def covers(self, records: Buffer, position: int, header: BatchHeader) -> bool:
        """Return whether the next batch is aborted. Call it for every batch in order."""
        while self._pending and self._pending[-1][0] <= header.last_offset:
            self._open.add(self._pending.pop()[1])
        if header.producer_id not in self._open or not header.is_transactional:
            return False
        if not header.is_control:
            return True
        marker = read_marker(records, header, position)
        if marker is not None and not marker.is_commit:
            self._open.discard(header.producer_id)
        return False
