"""Checking stored batches before they are served for the first time.

Damage is never served. Bytes that this process appended or recovered are trusted. All other bytes
are *cold*: the CRC of each cold batch is checked before the batch is returned for the first time.
Only the range about to be returned is checked, so a cold read costs in proportion to its size.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from millstream.log.reading.search import indexed_start_before
from millstream.log.reading.walk import DamagedLogError, header_at, read_exactly, report
from millstream.log.segment import Segment
from millstream.model.sentinel import NO_OFFSET
from millstream.records.batch import CorruptBatch, iterate_batches

_VERIFIED_RANGES_MAX: Final = 64


def verify(segment: Segment, position: int, end: int, segment_end: int) -> int:
    """Check the cold batches in [position, end) that were not checked before.

    Returns the end of the intact batches. Raises DamagedLogError if the first one is damaged.

    The CRC of a batch does not cover its offset, so the offset is compared with the neighbours. The
    check starts at the end of a verified range or at an index entry, which tells an offset. A batch
    after a gap must not overlap the next batch.
    """
    ranges = segment.cold_verified
    number = bisect_right(ranges, position, key=_range_start) - 1
    start, next_offset, is_exact = indexed_start_before(segment, position), NO_OFFSET, False
    if number >= 0:
        _, known_end, known_offset = ranges[number]
        if position < known_end:
            # The next read checks what follows the verified range.
            return end if known_end >= segment.hot_from else min(end, known_end)
        if position == known_end:
            start, next_offset, is_exact = position, known_offset, True
    stop = min(end, segment.hot_from)
    try:
        if not is_exact:
            next_offset = _first_expected(segment, start)
        good, good_offset = _intact(segment, start, stop, next_offset, segment_end)
    except DamagedLogError:
        if start == position:
            raise
        good = start
    if good <= position and start < position:
        # A damaged batch before `position` does not make the batch at `position` unreadable.
        start = position
        good, good_offset = _intact(segment, start, stop, segment.base_offset, segment_end)
    _add_range(ranges, (start, good, good_offset))
    return end if good == segment.hot_from else good


def _range_start(verified: tuple[int, int, int]) -> int:
    return verified[0]


def _first_expected(segment: Segment, start: int) -> int:
    """Return the lowest base offset that the batch at `start`, an index entry or 0, may have."""
    if start == 0:
        return segment.base_offset
    return header_at(segment, start, segment.size).base_offset


def _intact(
    segment: Segment, start: int, stop: int, next_offset: int, segment_end: int
) -> tuple[int, int]:
    """Return the end of the intact batches in [start, stop) and the offset after them."""
    data = read_exactly(segment.log.get(), min(stop + 8, segment.size) - start, start)
    view = memoryview(data)[: stop - start]
    good, good_offset, reason = 0, next_offset, "the file ends inside a batch"
    before_gap: tuple[int, int] | None = None  # start of the last batch, if a gap precedes it
    try:
        for position, header in iterate_batches(view):
            if header.base_offset < good_offset:
                reason = f"offset {header.base_offset} is out of order"
                break
            before_gap = (good, good_offset) if header.base_offset > good_offset else None
            good, good_offset = position + header.size, header.next_offset
        else:
            if good < len(view):
                before_gap = None
    except CorruptBatch as error:
        before_gap, reason = None, error.message or "it is no batch"
    if good == len(view):
        bound = segment_end
        if len(data) == good + 8:
            bound = int.from_bytes(data[good:], "big", signed=True)
        if before_gap is None or good_offset <= bound:
            return start + good, good_offset
        reason = f"offsets reach {good_offset}, beyond {bound}"
    if before_gap is not None:
        good, good_offset = before_gap
    damage = report(segment, start + good, reason)
    if good == 0:
        raise damage
    return start + good, good_offset


def _add_range(ranges: list[tuple[int, int, int]], added: tuple[int, int, int]) -> None:
    number = bisect_right(ranges, added[0], key=_range_start)
    ranges.insert(number, added)
    merged: list[tuple[int, int, int]] = []
    for item in ranges:
        if merged and item[0] <= merged[-1][1]:
            if item[1] > merged[-1][1]:
                merged[-1] = (merged[-1][0], item[1], item[2])
        else:
            merged.append(item)
    if len(merged) > _VERIFIED_RANGES_MAX:
        merged.remove(min(merged, key=lambda item: item[1] - item[0]))
    ranges[:] = merged
