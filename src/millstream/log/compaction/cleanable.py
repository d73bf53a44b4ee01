"""How dirty a compacted log is, and which part of it may be cleaned.

Pure decisions over a log's segments. The cleaner examines every log and picks one.

    first dirty offset   the log is clean below it; the cleaner stores it
    end offset           the base offset of the first segment that may not be cleaned: the active
                         one, one that reaches beyond the limit, or a dirty one with a record
                         younger than min.compaction.lag.ms
    limit                the lower one of high watermark and recovery point: a record must not be
                         removed because of a later one that a power failure may remove. Also not
                         above the first offset of an open transaction
    dirty ratio          bytes from the first dirty offset to the end offset, divided by all bytes
                         up to the end offset
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from millstream.log.index.rebuild import ensure_indexes
from millstream.log.log import PartitionLog
from millstream.log.segment import Segment
from millstream.model.config import TopicConfig
from millstream.model.sentinel import INT64_MAX
from millstream.records.batch import HEADER_BYTES, read_header

#: A log with a compaction lag is examined this often, even without appends.
_LAG_CHECK_MS: Final = 60_000
_FOREVER_MS: Final = INT64_MAX


@dataclass(frozen=True, slots=True)
class Candidate:
    """A log that can be cleaned from `first_dirty_offset` to `end_offset`.

    `is_overdue`: a dirty record is older than max.compaction.lag.ms.
    """

    log: PartitionLog
    first_dirty_offset: int
    end_offset: int
    dirty_ratio: float
    is_overdue: bool

    @property
    def is_wanted(self) -> bool:
        """Whether the log should be cleaned now."""
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


class CleanState(NamedTuple):
    """The state in which a log needed no cleaning."""

    config: TopicConfig
    log_end_offset: int
    limit_offset: int
    #: When time alone may change the decision.
    until_ms: int
    dirty_ratio: float

    @classmethod
    def of(cls, log: PartitionLog, limit: int, now_ms: int, dirty_ratio: float) -> CleanState:
        lags = (log.config.min_compaction_lag_ms, log.config.max_compaction_lag_ms)
        has_lag = any(0 < lag < _FOREVER_MS for lag in lags)
        until_ms = now_ms + _LAG_CHECK_MS if has_lag else _FOREVER_MS
        return cls(log.config, log.log_end_offset, limit, until_ms, dirty_ratio)

    def is_unchanged(self, log: PartitionLog, limit: int, now_ms: int) -> bool:
        return (
            self.config is log.config
            and self.log_end_offset == log.log_end_offset
            and self.limit_offset == limit
            and now_ms < self.until_ms
        )


def is_compacted(log: PartitionLog) -> bool:
    """Return whether the log is compacted, not empty and recovered."""
    return (
        "compact" in log.config.cleanup_policy
        and log.is_recovered
        and log.log_start_offset < log.log_end_offset
    )


def first_dirty_offset(log: PartitionLog, checkpoint: int | None) -> int:
    """Return the first dirty offset of a log that was last cleaned up to `checkpoint`."""
    start = log.log_start_offset
    # Beyond the end: the log lost its tail, and its present records were never cleaned.
    if checkpoint is None or not start <= checkpoint <= log.log_end_offset:
        return start
    return checkpoint


def limit_offset(log: PartitionLog, high_watermark: int) -> int:
    """Return the offset below which records may be cleaned."""
    return min(high_watermark, log.recovery_point)


def find_candidate(
    log: PartitionLog, first_dirty: int, limit: int, now_ms: int
) -> Candidate | None:
    """Return what can be cleaned of this log now; None if nothing can. Loads the log."""
    segments = log.segments
    stable = log.last_stable_offset(limit)
    end = _end_offset(segments, log.config, first_dirty, stable, now_ms)
    if end <= first_dirty:
        return None
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    latest_ms = now_ms - max(0, log.config.max_compaction_lag_ms)
    for segment, following in pairwise(segments):
        if segment.base_offset >= end:
            break
        if following.base_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        if segment.size and latest_ms > 0:
            is_overdue = is_overdue or 0 < _first_timestamp(segment) < latest_ms
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    return Candidate(log, first_dirty, end, ratio, is_overdue)


def _end_offset(
    segments: Sequence[Segment],
    config: TopicConfig,
    first_dirty: int,
    limit: int,
    now_ms: int,
) -> int:
    latest_ms = now_ms - config.min_compaction_lag_ms
    for segment, following in pairwise(segments):
        if following.base_offset > limit:
            return segment.base_offset
        is_dirty = following.base_offset > first_dirty
        if is_dirty and config.min_compaction_lag_ms > 0:
            ensure_indexes(segment, config.index_interval_bytes)
            if segment.load_max_timestamp() > latest_ms:
                return segment.base_offset
    return segments[-1].base_offset if segments else first_dirty


def _first_timestamp(segment: Segment) -> int:
    """Return the largest timestamp of the segment's first batch."""
    if segment.first_timestamp is None:
        head = segment.log.get().pread(HEADER_BYTES, 0)
        segment.first_timestamp = read_header(head).max_timestamp
    return segment.first_timestamp
