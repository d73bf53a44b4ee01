"""What a reader that stands at an offset has before it: since when, and for how long still.

Looks at the headers of batches near the offset, found through the index, and at a bounded number of
them; no record is read, and no index is rebuilt for it. `retention_bound` is the counterpart of
`retention`: it says when that will take a segment, at the earliest, instead of whether it may now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.log import reader
from millstream.log.log import PartitionLog, number_of
from millstream.log.segment import Segment
from millstream.model.sentinel import NO_TIMESTAMP
from millstream.records.batch import BatchHeader

#: Headers and segments looked at for one answer. An index interval of the default size holds fewer.
HEADERS_READ_MAX: Final = 128


class UnreadBatch(NamedTuple):
    """The first batch that a reader has not read, or not in full."""

    #: Of its first record, or a little earlier where the search was cut short; None if not known.
    timestamp_ms: int | None


class RetentionBound(NamedTuple):
    """For how long a position is safe from retention, at least."""

    #: When its segment is too old; None if time does not matter.
    until_ms: int | None
    #: What may be appended until its segment is beyond the size; None if size does not matter.
    bytes_left: int | None


UNBOUNDED: Final = RetentionBound(None, None)
_UNKNOWN: Final = UnreadBatch(None)


def first_unread_batch(log: PartitionLog, offset: int, end_offset: int) -> UnreadBatch | None:
    """What is to be read from `offset` on, up to `end_offset`; None if nothing is.

    Offsets alone can't tell: compaction may have taken the last records, and transaction markers
    have offsets that no reader ever sees. Raises BrokerError or OSError where the log can't be
    read."""
    segments = log.segments
    looks = 0
    for segment in segments[max(number_of(segments, offset), 0) :]:
        if not reader.indexes_sane(segment):
            return _UNKNOWN
        looks += 1
        for header in _headers(segment, offset):
            looks += 1
            if header.base_offset >= end_offset:
                return None
            is_ahead = header.last_offset >= offset and header.count and not header.is_control
            if is_ahead or looks >= HEADERS_READ_MAX:
                return UnreadBatch(_timestamp_of(header))
    return None


def retention_bound(log: PartitionLog, offset: int) -> RetentionBound:
    """When retention takes the segment that holds `offset`. Raises OSError."""
    config = log.config
    segments = log.segments
    if "delete" not in config.cleanup_policy or not segments:
        return UNBOUNDED
    number = max(number_of(segments, offset), 0)
    until_ms = bytes_left = None
    if config.retention_ms >= 0 and reader.indexes_sane(segments[number]):
        until_ms = log.latest_ms(segments[number]) + config.retention_ms
    if config.retention_bytes >= 0:
        # The oldest segment goes as soon as the ones after it are enough.
        behind_bytes = sum(segment.size for segment in segments[number + 1 :])
        bytes_left = max(config.retention_bytes - behind_bytes, 0)
    return RetentionBound(until_ms, bytes_left)


def _headers(segment: Segment, offset: int) -> Iterator[BatchHeader]:
    """From the batch that holds `offset` on, or from one not far before it."""
    position = segment.positions.get(offset)
    if position is None:
        position = reader.indexed_start(segment, offset)
    for _, header in reader.walk(segment, position, segment.size):
        yield header


def _timestamp_of(header: BatchHeader) -> int | None:
    # Compaction may have put its own time in the place of the first record's.
    is_first_known = header.delete_horizon_ms is None and not header.is_append_time
    timestamp_ms = header.base_timestamp if is_first_known else header.latest_timestamp
    return None if timestamp_ms == NO_TIMESTAMP else timestamp_ms
