"""Reading batch headers of a segment in order, with the framing of each checked.

Damage is logged once per position, with path and position, and raised as DamagedLogError. Whole
batches before and after the damage stay readable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from millstream.env.disk import File
from millstream.log.segment import Segment
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import RELATIVE_OFFSET_MAX
from millstream.records.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, read_header

_logger = logging.getLogger(__name__)

#: Size of one read while walking: a little more than an index interval.
_WALK_BYTES: Final = 4096 + HEADER_BYTES


class DamagedLogError(BrokerError):
    """Stored bytes differ from what was appended."""

    __slots__ = ("position",)

    def __init__(self, segment: Segment, position: int, reason: str) -> None:
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE, f"{segment.log.path} is damaged at {position}: {reason}"
        )
        self.position = position


def report(segment: Segment, position: int, reason: str) -> DamagedLogError:
    """Return the error for damage at `position`, and log it the first time."""
    error = DamagedLogError(segment, position, reason)
    if position not in segment.damage:
        segment.damage.add(position)
        _logger.error("%s; that range will not be served", error.message)
    return error


def header_at(segment: Segment, position: int, limit: int) -> BatchHeader:
    """Return the header at `position`. Raise DamagedLogError if the batch ends above `limit`."""
    data = segment.log.get().pread(HEADER_BYTES, position)
    return _checked(segment, data, 0, position, limit)


def _checked(segment: Segment, data: bytes, index: int, position: int, limit: int) -> BatchHeader:
    if len(data) - index < HEADER_BYTES:
        raise report(segment, position, "the file ends inside a batch header")
    header = read_header(data, index)
    size = header.batch_length + LOG_OVERHEAD
    if (
        header.magic == MAGIC
        and HEADER_BYTES <= size <= limit - position
        and header.base_offset >= segment.base_offset
        and header.last_offset_delta >= 0
        and header.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX
    ):
        return header
    raise report(
        segment,
        position,
        f"no batch header (offset {header.base_offset}, magic {header.magic}, {size} bytes)",
    )


def walk(segment: Segment, position: int, limit: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch in [position, limit). Raise DamagedLogError.

    `position` must be the start of a batch.
    """
    file = segment.log.get()
    data, start, next_offset = b"", position, segment.base_offset
    while position < limit:
        if position + HEADER_BYTES > start + len(data):
            data, start = file.pread(min(_WALK_BYTES, limit - position), position), position
        header = _checked(segment, data, position - start, position, limit)
        if header.base_offset < next_offset:
            raise report(segment, position, f"offset {header.base_offset} is out of order")
        yield position, header
        next_offset = header.next_offset
        position += header.size


def entry_header(segment: Segment, offset: int, position: int) -> BatchHeader | None:
    """Return the header at `position` if that batch ends with `offset`, as an index entry says."""
    if not 0 < position <= segment.size - HEADER_BYTES:
        return None
    header = read_header(segment.log.get().pread(HEADER_BYTES, position))
    return header if header.magic == MAGIC and header.last_offset == offset else None


def read_exactly(file: File, size: int, position: int) -> bytes:
    """Read `size` bytes at `position`; fewer only at the end of the file."""
    data = file.pread(size, position)
    while len(data) < size:
        more = file.pread(size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data
