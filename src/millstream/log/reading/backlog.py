"""What a reader at an offset has not read: the time of the first unread batch, and its retention.

Reads a bounded number of batch headers near the offset, found through the index. Reads no record
and rebuilds no index. `retention` decides whether a segment may be deleted now; `retention_bound`
says when that happens at the earliest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.log.index.rebuild import indexes_sane
from millstream.log.log import PartitionLog
from millstream.log.reading.search import indexed_start
from millstream.log.reading.walk import walk
from millstream.log.retention import latest_ms
from millstream.log.segment import Segment
from millstream.log.segment_files import number_of
from millstream.model.sentinel import NO_TIMESTAMP
from millstream.records.batch import BatchHeader

#: Most headers and segments read for one search. A default index interval holds fewer batches.
HEADERS_READ_MAX: Final = 128


class UnreadBatch(NamedTuple):
    """The first batch that a reader has not read, or not in full."""

    #: Timestamp of its first record, or of an earlier one where the search reached its limit. None
    #: if unknown.
    timestamp_ms: int | None


class RetentionBound(NamedTuple):
    """How long retention keeps the segment of an offset, at least."""

    #: When the segment becomes too old; None without retention by time.
    until_ms: int | None
    #: Bytes that may be appended before the log is too large; None without retention by size.
    bytes_left: int | None


UNBOUNDED: Final = RetentionBound(None, None)
_UNKNOWN: Final = UnreadBatch(None)


def first_unread_batch(log: PartitionLog, offset: int, end_offset: int) -> UnreadBatch | None:
    """Return the first unread batch in [offset, end_offset), or None if there is none.

    Offsets alone do not tell: compaction may have removed the last records, and readers never see
    transaction markers. Raises BrokerError or OSError where the log cannot be read."""
    segments = log.segments
    headers_read = 0
    for segment in segments[max(number_of(segments, offset), 0) :]:
        if not indexes_sane(segment):
            return _UNKNOWN
        headers_read += 1
        for header in _headers(segment, offset):
            headers_read += 1
            if header.base_offset >= end_offset:
                return None
            is_ahead = header.last_offset >= offset and header.count and not header.is_control
            if is_ahead or headers_read >= HEADERS_READ_MAX:
                return UnreadBatch(_timestamp_of(header))
    return None


def retention_bound(log: PartitionLog, offset: int) -> RetentionBound:
    """Return when retention deletes the segment that holds `offset`. Raises OSError."""
    config = log.config
    segments = log.segments
    if "delete" not in config.cleanup_policy or not segments:
        return UNBOUNDED
    number = max(number_of(segments, offset), 0)
    until_ms = bytes_left = None
    if config.retention_ms >= 0 and indexes_sane(segments[number]):
        until_ms = latest_ms(log.storage.disk, segments[number]) + config.retention_ms
    if config.retention_bytes >= 0:
        # Retention deletes a segment once the later ones reach the configured size.
        behind_bytes = sum(segment.size for segment in segments[number + 1 :])
        bytes_left = max(config.retention_bytes - behind_bytes, 0)
    return RetentionBound(until_ms, bytes_left)


def _headers(segment: Segment, offset: int) -> Iterator[BatchHeader]:
    """Yield headers from the batch that holds `offset`, or from an indexed one before it."""
    position = segment.positions.get(offset)
    if position is None:
        position = indexed_start(segment, offset)
    for _, header in walk(segment, position, segment.size):
        yield header


def _timestamp_of(header: BatchHeader) -> int | None:
    # Compaction may have replaced the base timestamp by the delete horizon.
    is_first_known = header.delete_horizon_ms is None and not header.is_append_time
    timestamp_ms = header.base_timestamp if is_first_known else header.latest_timestamp
    return None if timestamp_ms == NO_TIMESTAMP else timestamp_ms
