"""Checking the offset and time index of a segment before use, and rebuilding them from the log."""

from __future__ import annotations

import logging

from millstream.log.reading.walk import DamagedLogError, walk
from millstream.log.segment import Segment

_logger = logging.getLogger(__name__)


def indexes_sane(segment: Segment) -> bool:
    """Return whether both index files exist and their last entries are plausible."""
    if segment.indexes_checked:
        return True
    try:
        return segment.offset_index.is_sane(segment.size) and segment.time_index.is_sane()
    except FileNotFoundError:
        return False


def ensure_indexes(segment: Segment, interval: int) -> None:
    """Check both indexes before their first use. Rebuild them if one is missing or wrong."""
    if segment.indexes_checked:
        return
    if not indexes_sane(segment):
        _logger.warning("rebuilding the indexes of %s", segment.log.path)
        rebuild_indexes(segment, interval)
    segment.indexes_checked = True


def rebuild_indexes(segment: Segment, interval: int) -> None:
    """Rebuild both indexes from the batch headers, up to the first damaged one."""
    segment.start_indexes()
    try:
        for position, header in walk(segment, 0, segment.size):
            segment.index_batch(
                position, header.size, header.last_offset, header.latest_timestamp, interval
            )
    except DamagedLogError as damage:
        _logger.warning("the indexes of %s end at %d", segment.log.path, damage.position)
    segment.seal()


def reindex_tail(segment: Segment, interval: int) -> None:
    """Index the batches after the last index entry again, once the segment was truncated."""
    count = len(segment.offset_index)
    start = segment.offset_index.lookup(count - 1)[1] if count else 0
    for position, header in walk(segment, start, segment.size):
        segment.index_batch(
            position, header.size, header.last_offset, header.latest_timestamp, interval
        )
