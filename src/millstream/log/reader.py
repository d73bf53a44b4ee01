"""Finding and checking batches inside one segment.

Owns the way from an offset to a byte range, and the rule that damage is never served: framing is
checked at the start of every range, and stored bytes that this process neither wrote nor recovered
have the CRC of each batch checked before they are handed out for the first time. That check covers
only what is about to be returned, so a cold read costs in proportion to its size.

Damage is reported in the log once per place, with path and position, and answered with
CORRUPT_MESSAGE. Whole batches before it and after it stay readable.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from millstream.env.disk import File
from millstream.log.files import FileHandle
from millstream.log.segment import Segment
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_OFFSET, RELATIVE_OFFSET_MAX
from millstream.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    iterate_batches,
    read_header,
)

_logger = logging.getLogger(__name__)

#: The most that is checked, and so returned, by one read of cold data, first batch aside.
COLD_READ_BYTES_MAX: Final = 2 << 20
#: Headers are looked for in reads of this size: a little more than an index interval.
_WALK_BYTES: Final = 4096 + HEADER_BYTES
_VERIFIED_RANGES_MAX: Final = 64
#: Distance of entries in an index that is replaced because it was wrong.
_REBUILD_INTERVAL_BYTES: Final = 4096


class DamagedLogError(BrokerError):
    """Stored bytes are not what was appended."""

    __slots__ = ("position",)

    def __init__(self, segment: Segment, position: int, reason: str) -> None:
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE, f"{segment.log.path} is damaged at {position}: {reason}"
        )
        self.position = position


def report(segment: Segment, position: int, reason: str) -> DamagedLogError:
    """The error for damage at `position`; logs it the first time."""
    error = DamagedLogError(segment, position, reason)
    if position not in segment.damage:
        segment.damage.add(position)
        _logger.error("%s; that range will not be served", error.message)
    return error


def header_at(segment: Segment, position: int, limit: int) -> BatchHeader:
    """The header at `position`, with framing that fits below `limit`; raises DamagedLogError."""
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
    """Headers from `position` on, which must be a batch start, in order. Raises DamagedLogError."""
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


def locate(segment: Segment, offset: int) -> tuple[int, BatchHeader] | None:
    """The first batch that reaches `offset`; None if the segment ends before it."""
    for position, header in walk(segment, indexed_start(segment, offset), segment.size):
        if header.last_offset >= offset:
            return position, header
    return None


def indexed_start(segment: Segment, offset: int) -> int:
    """The last batch start that the index knows and that is not past the batch of `offset`."""
    return _trusted(segment, lambda: segment.offset_index.number_at(offset))


def _start_before(segment: Segment, position: int) -> int:
    """The last batch start at or below `position` that the index knows; 0 if it knows none."""
    return _trusted(segment, lambda: segment.offset_index.number_at_position(position))


def _trusted(segment: Segment, find: Callable[[], int]) -> int:
    """The position of the index entry whose number `find` gives, or 0 if that is -1.

    An entry read from the file is held against the batch it points at. Where they disagree the
    index is rebuilt, if that can be done; else 0 is a start that is always right.
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
        _distrust_index(segment)
        return _trusted(segment, find)
    return 0


def entry_header(segment: Segment, offset: int, position: int) -> BatchHeader | None:
    """The header of the batch at `position` if it ends with `offset`, as an index entry says."""
    if not 0 < position <= segment.size - HEADER_BYTES:
        return None
    header = read_header(segment.log.get().pread(HEADER_BYTES, position))
    return header if header.magic == MAGIC and header.last_offset == offset else None


def _distrust_index(segment: Segment) -> None:
    """Either an index entry or the batch it points at is damaged: find out which.

    Where the batches can be followed from end to end the index was wrong and is replaced.
    """
    _logger.warning("%s disagrees with its index: checking both", segment.log.path)
    try:
        for _ in walk(segment, 0, segment.size):
            pass
    except DamagedLogError:
        return
    rebuild_indexes(segment, _REBUILD_INTERVAL_BYTES)


def range_end(
    segment: Segment, position: int, first_bytes: int, limit: int, bytes_max: int
) -> tuple[int, int]:
    """Where whole batches from `position` on end so that they fit into `bytes_max`.

    The first batch, of `first_bytes`, fits by assumption. Also returns the offset of the batch that
    begins there, or NO_OFFSET at the limit and before damage.
    """
    target = position + bytes_max
    if target >= limit:
        return limit, NO_OFFSET
    end = max(_start_before(segment, target), position + first_bytes)
    try:
        for start, header in walk(segment, end, limit):
            if start + header.size > target:
                segment.remember(header.base_offset, start)
                return start, header.base_offset
    except DamagedLogError as damage:
        return damage.position, NO_OFFSET
    return limit, NO_OFFSET


class Bounds(NamedTuple):
    """Up to where a segment may be read."""

    #: The next segment's base offset, or the log's end.
    segment_end: int
    #: What the reader may see, at most.
    end_offset: int


def read_range(
    segment: Segment, offset: int, bounds: Bounds, bytes_max: int, at_least_one: bool, interval: int
) -> LogSlice | None:
    """Whole batches from the one that reaches `offset` on; None if the segment ends before it."""
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
    if header.last_offset >= bounds.segment_end:
        raise report(segment, position, f"offsets reach {header.last_offset}")
    if header.base_offset >= bounds.end_offset or (first_bytes > bytes_max and not at_least_one):
        return EMPTY_SLICE
    is_cold = position < segment.hot_from
    if is_cold:
        ensure_indexes(segment, interval)
        bytes_max = min(bytes_max, COLD_READ_BYTES_MAX)
    limit = segment.size
    if bounds.end_offset < bounds.segment_end:
        limit = _position_of(segment, bounds.end_offset, interval)
    end, end_offset = position + first_bytes, header.next_offset
    if first_bytes < bytes_max:
        end, end_offset = range_end(segment, position, first_bytes, limit, bytes_max)
        if end == limit:
            end_offset = min(bounds)
    if is_cold:
        end, end_offset = verify(segment, position, end, bounds.segment_end), NO_OFFSET
    return LogSlice(segment, position, end - position, end_offset)


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


def verify(segment: Segment, position: int, end: int, segment_end: int) -> int:
    """Check the cold batches in [position, end) unless that was done before.

    Returns the end of the intact ones. Raises DamagedLogError if not even the first one is.

    The CRC of a batch does not cover its offset. That is held against its neighbours: the check
    starts at the end of what was checked before, or at an index entry, which tells an offset, and
    a batch that leaves a gap before it must not reach into the one after it.
    """
    ranges = segment.cold_verified
    number = bisect_right(ranges, position, key=_range_start) - 1
    start, next_offset, is_exact = _start_before(segment, position), -1, False
    if number >= 0:
        _, known_end, known_offset = ranges[number]
        if position < known_end:
            # What follows the known part is left for the next read.
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
        # An intact batch is not lost to a damaged one before it.
        start = position
        good, good_offset = _intact(segment, start, stop, segment.base_offset, segment_end)
    _add_range(ranges, (start, good, good_offset))
    return end if good == segment.hot_from else good


def _range_start(verified: tuple[int, int, int]) -> int:
    return verified[0]


def _first_expected(segment: Segment, start: int) -> int:
    """The base offset that the batch at `start`, an index entry or 0, must not be below."""
    if start == 0:
        return segment.base_offset
    return header_at(segment, start, segment.size).base_offset


def _intact(
    segment: Segment, start: int, stop: int, next_offset: int, segment_end: int
) -> tuple[int, int]:
    """The end of the intact batches in [start, stop) and the offset after them."""
    data = read_exactly(segment.log.get(), min(stop + 8, segment.size) - start, start)
    view = memoryview(data)[: stop - start]
    good, good_offset, reason = 0, next_offset, "the file ends inside a batch"
    before_gap: tuple[int, int] | None = None  # where the last batch starts, if a gap precedes it
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


def indexes_sane(segment: Segment) -> bool:
    """Whether both indexes are there and could be true."""
    if segment.indexes_checked:
        return True
    try:
        return segment.offset_index.is_sane(segment.size) and segment.time_index.is_sane()
    except FileNotFoundError:
        return False


def ensure_indexes(segment: Segment, interval: int) -> None:
    """Check both indexes before their first use; rebuild them if one is missing or wrong."""
    if segment.indexes_checked:
        return
    if not indexes_sane(segment):
        _logger.warning("rebuilding the indexes of %s", segment.log.path)
        rebuild_indexes(segment, interval)
    segment.indexes_checked = True


def rebuild_indexes(segment: Segment, interval: int) -> None:
    """Make both indexes anew from the batch headers, up to the first that cannot be followed."""
    segment.start_indexes()
    try:
        for position, header in walk(segment, 0, segment.size):
            segment.note_batch(
                position, header.size, header.last_offset, header.latest_timestamp, interval
            )
    except DamagedLogError as damage:
        _logger.warning("the indexes of %s end at %d", segment.log.path, damage.position)
    segment.seal()


def read_exactly(file: File, size: int, position: int) -> bytes:
    """`size` bytes from `position`; fewer only at the end of the file."""
    data = file.pread(size, position)
    while len(data) < size:
        more = file.pread(size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def resume(segment: Segment, interval: int) -> None:
    """After a truncation: learn what the batches from the last index entry on tell."""
    count = len(segment.offset_index)
    start = segment.offset_index.lookup(count - 1)[1] if count else 0
    for position, header in walk(segment, start, segment.size):
        segment.note_batch(
            position, header.size, header.last_offset, header.latest_timestamp, interval
        )


class Readable(Protocol):
    """The part of a log that readers of its files use."""

    def read_failed(self, error: OSError) -> BrokerError:
        """Take note that the disk failed; returns what to raise."""
        ...


class LogSlice:
    """Whole batches as a byte range of a segment's file. Nothing is read until asked for.

    The file may be closed, and removed, by the next turn of the event loop: whoever sends from it
    over time takes `held`.
    """

    __slots__ = ("_length", "_segment", "end_offset", "log", "position")

    def __init__(
        self, segment: Segment | None, position: int, length: int, end_offset: int = NO_OFFSET
    ) -> None:
        self._segment = segment
        #: Told when the file can't be read.
        self.log: Readable | None = None
        self.position = position
        self._length = length
        #: The first offset after the range, or NO_OFFSET.
        self.end_offset = end_offset

    def __len__(self) -> int:
        return self._length

    def read(self) -> bytes:
        """Raises KAFKA_STORAGE_ERROR where the disk fails."""
        if self._segment is None:
            return b""
        try:
            return read_exactly(self._segment.log.get(), self._length, self.position)
        except OSError as error:
            raise self._failed(error) from error

    def open(self) -> None:
        """Open the file now: `held` opens it only if it was closed since.

        Raises KAFKA_STORAGE_ERROR where that can't be done."""
        assert self._segment is not None
        try:
            self._segment.log.get()
        except OSError as error:
            raise self._failed(error) from error

    def held(self) -> HeldSlice:
        """Return the same bytes, readable until the result is released. Not for an empty slice.

        Raises KAFKA_STORAGE_ERROR where the file can't be opened."""
        assert self._segment is not None
        handle = self._segment.log
        try:
            handle.pin()
        except OSError as error:
            raise self._failed(error) from error
        return HeldSlice(handle, self.position, self._length, self.log)

    def _failed(self, error: OSError) -> Exception:
        return error if self.log is None else self.log.read_failed(error)


class HeldSlice:
    """A range of a file that stays open, whatever becomes of its name, until `release`.

    Takes over one pin of the handle. Its owner must release it, on the event loop.
    """

    __slots__ = ("_handle", "_length", "_log", "position")

    def __init__(
        self, handle: FileHandle, position: int, length: int, log: Readable | None
    ) -> None:
        #: None once it was released.
        self._handle: FileHandle | None = handle
        self._log = log
        self.position = position
        self._length = length

    def __len__(self) -> int:
        return self._length

    def fileno(self) -> int:
        return self._file().fileno()

    def read(self) -> bytes:
        try:
            return read_exactly(self._file(), self._length, self.position)
        except OSError as error:
            self.failed(error)
            raise

    def _file(self) -> File:
        assert self._handle is not None, "it was released"
        return self._handle.get()

    def failed(self, error: OSError) -> None:
        """The disk failed while the range was being sent."""
        if self._log is not None:
            self._log.read_failed(error)

    def release(self) -> None:
        """Give the pin back; more than once has no effect."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.unpin()


EMPTY_SLICE: Final = LogSlice(None, 0, 0)
