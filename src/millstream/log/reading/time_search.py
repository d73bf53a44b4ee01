"""Finding records by timestamp (ListOffsets).

The time index leads to the batch. Only that batch is decoded to find the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.log.index.rebuild import ensure_indexes
from millstream.log.reading.search import locate
from millstream.log.reading.verification import verify
from millstream.log.reading.walk import read_exactly, walk
from millstream.log.segment import Segment
from millstream.records.batch import BatchHeader
from millstream.records.record import decode_records


class TimestampOffset(NamedTuple):
    """A record that was found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


class TimeSearch:
    """Searches the segments of one log."""

    __slots__ = ("_decompressed_bytes_max", "_interval", "_segments", "_start")

    def __init__(
        self,
        segments: Sequence[Segment],
        log_start_offset: int,
        interval: int,
        decompressed_bytes_max: int,
    ) -> None:
        self._segments = segments
        self._start = log_start_offset
        self._interval = interval
        self._decompressed_bytes_max = decompressed_bytes_max

    def first_at(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record, in offset order, at or after `timestamp`."""
        for segment in self._segments:
            ensure_indexes(segment, self._interval)
            if segment.load_max_timestamp() < timestamp:
                continue
            start = segment.offset_index.floor(segment.time_index.floor(timestamp))
            for position, header in walk(segment, start, segment.size):
                if header.max_timestamp >= timestamp and header.last_offset >= self._start:
                    found = self._in_batch(segment, position, header, timestamp)
                    if found is not None:
                        return found
        return None

    def latest(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of the log."""
        best: Segment | None = None
        for segment in self._segments:
            ensure_indexes(segment, self._interval)
            if segment.size and (
                best is None or segment.load_max_timestamp() > best.load_max_timestamp()
            ):
                best = segment
        if best is None:
            return None
        found = locate(best, best.max_timestamp_offset)
        if found is None:
            return None
        return self._in_batch(best, *found, best.load_max_timestamp())

    def _in_batch(
        self, segment: Segment, position: int, header: BatchHeader, timestamp: int
    ) -> TimestampOffset | None:
        if position < segment.hot_from:
            verify(segment, position, position + header.size, header.next_offset)
        data = read_exactly(segment.log.get(), header.size, position)
        for record in decode_records(data, self._decompressed_bytes_max):
            if record.timestamp >= timestamp and record.offset >= self._start:
                return TimestampOffset(record.timestamp, record.offset, header.leader_epoch)
        return None
