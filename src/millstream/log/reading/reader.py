"""Reading a byte range of whole batches from one segment, from an offset on.

The framing of the first batch is checked at every read. Cold batches are verified (see
`verification`). Damage is returned to clients as CORRUPT_MESSAGE.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.log.index.rebuild import ensure_indexes
from millstream.log.reading.search import indexed_start_before, locate
from millstream.log.reading.slice import EMPTY_SLICE, LogSlice
from millstream.log.reading.verification import verify
from millstream.log.reading.walk import DamagedLogError, header_at, report, walk
from millstream.log.segment import Segment
from millstream.model.sentinel import NO_OFFSET

#: Most bytes that one read of cold data checks and returns, unless the first batch is larger.
COLD_READ_BYTES_MAX: Final = 2 << 20


class ReadLimits(NamedTuple):
    """How far one read of a segment may go."""

    #: The next segment's base offset, or the log end offset.
    segment_end: int
    #: The first offset that the reader may not see.
    end_offset: int
    bytes_max: int
    #: Whether the first batch is returned even if it is larger than `bytes_max`.
    at_least_one: bool


def read_range(segment: Segment, offset: int, limits: ReadLimits, interval: int) -> LogSlice | None:
    """Return whole batches from the one that reaches `offset` on.

    None if the segment ends before that batch. `interval` is the index interval in bytes.
    """
    segment_end, end_offset_max, bytes_max, at_least_one = limits
    position = segment.positions.get(offset)
    if position is not None:
        header = header_at(segment, position, segment.size)
    else:
        ensure_indexes(segment, interval)
        found = locate(segment, offset)
        if found is None:
            return None
        position, header = found
        segment.remember(offset, position)
    first_bytes = header.size
    if header.last_offset >= segment_end:
        raise report(segment, position, f"offsets reach {header.last_offset}")
    if header.base_offset >= end_offset_max or (first_bytes > bytes_max and not at_least_one):
        return EMPTY_SLICE
    is_cold = position < segment.hot_from
    if is_cold:
        ensure_indexes(segment, interval)
        bytes_max = min(bytes_max, COLD_READ_BYTES_MAX)
    limit = segment.size
    if end_offset_max < segment_end:
        limit = _position_of(segment, end_offset_max, interval)
    end, end_offset = position + first_bytes, header.next_offset
    if first_bytes < bytes_max:
        end, end_offset = range_end(segment, position, first_bytes, limit, bytes_max)
        if end == limit:
            end_offset = min(segment_end, end_offset_max)
    if is_cold:
        end, end_offset = verify(segment, position, end, segment_end), NO_OFFSET
    return LogSlice(segment, position, end - position, end_offset)


def range_end(
    segment: Segment, position: int, first_bytes: int, limit: int, bytes_max: int
) -> tuple[int, int]:
    """Return where the whole batches from `position` on that fit into `bytes_max` end.

    The first batch, of `first_bytes`, always fits. Also returns the offset of the batch that starts
    at the end, or NO_OFFSET at the limit and before damage.
    """
    target = position + bytes_max
    if target >= limit:
        return limit, NO_OFFSET
    end = max(indexed_start_before(segment, target), position + first_bytes)
    try:
        for start, header in walk(segment, end, limit):
            if start + header.size > target:
                segment.remember(header.base_offset, start)
                return start, header.base_offset
    except DamagedLogError as damage:
        return damage.position, NO_OFFSET
    return limit, NO_OFFSET


def _position_of(segment: Segment, end_offset: int, interval: int) -> int:
    position = segment.positions.get(end_offset)
    if position is None:
        ensure_indexes(segment, interval)
        found = locate(segment, end_offset)
        if found is None:
            return segment.size
        position = found[0]
        segment.remember(end_offset, position)
    return position
