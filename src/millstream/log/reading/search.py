"""Finding the batch of an offset through the offset index.

An index entry that was read from a file is compared with the batch that it points at. Where they
differ, either the entry or the batch is damaged. If the batches can be walked from end to end, the
index was wrong and is rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from millstream.log.index.rebuild import rebuild_indexes
from millstream.log.reading.walk import DamagedLogError, entry_header, walk
from millstream.log.segment import Segment
from millstream.records.batch import BatchHeader

_logger = logging.getLogger(__name__)

#: Distance of entries in an index that is rebuilt because it was wrong.
_REBUILD_INTERVAL_BYTES: Final = 4096


def locate(segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
    """Return the first batch whose last offset reaches `offset`, or None if there is none."""
    for position, header in walk(segment, indexed_start(segment, offset), segment.size):
        if header.last_offset >= offset:
            return position, header
    return None


def indexed_start(segment: Segment, offset: int) -> int:
    """Return the last indexed batch start that is not after the batch of `offset`."""
    return _trusted(segment, lambda: segment.offset_index.number_at(offset))


def indexed_start_before(segment: Segment, position: int) -> int:
    """Return the last indexed batch start at or below `position`, or 0."""
    return _trusted(segment, lambda: segment.offset_index.number_at_position(position))


def _trusted(segment: Segment, find: Callable[[], int]) -> int:
    """Return the position of the index entry with the number `find()`, or 0 if that is -1.

    0 is a correct start where the index stays wrong.
    """
    index = segment.offset_index
    number = find()
    if number < 0:
        return 0
    offset, position = index.lookup(number)
    if index.is_in_memory or entry_header(segment, offset, position) is not None:
        return position
    if not segment.index_distrusted:
        segment.index_distrusted = True
        _check_index(segment)
        return _trusted(segment, find)
    return 0


def _check_index(segment: Segment) -> None:
    """Rebuild the index unless a batch is damaged."""
    _logger.warning("%s disagrees with its index: checking both", segment.log.path)
    try:
        for _ in walk(segment, 0, segment.size):
            pass
    except DamagedLogError:
        return
    rebuild_indexes(segment, _REBUILD_INTERVAL_BYTES)
