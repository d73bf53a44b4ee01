"""Which segments of a log retention deletes, by time, by size and by the log start offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.env.disk import Disk
from millstream.log.index.rebuild import ensure_indexes
from millstream.log.segment import Segment
from millstream.log.segment_files import end_of
from millstream.model.config import TopicConfig
from millstream.model.sentinel import INT64_MAX

#: The next expiry of a log in which nothing expires by time.
NEVER_MS: Final = INT64_MAX


class SegmentFacts(NamedTuple):
    """What retention knows of one segment."""

    size: int
    #: Its largest timestamp, or the time of its last write if no record has one.
    latest_ms: int
    #: The offset after the segment.
    end_offset: int


def describe_segments(
    disk: Disk, segments: Sequence[Segment], log_end_offset: int, interval: int
) -> list[SegmentFacts]:
    """Return what retention needs to know of each segment. `interval` is the index interval."""
    facts = []
    for number, segment in enumerate(segments):
        ensure_indexes(segment, interval)
        end_offset = end_of(segments, number, log_end_offset)
        facts.append(SegmentFacts(segment.size, latest_ms(disk, segment), end_offset))
    return facts


def latest_ms(disk: Disk, segment: Segment) -> int:
    """Return the time from which a segment's age counts. Its indexes must be checked."""
    timestamp_ms = segment.load_max_timestamp()
    if timestamp_ms < 0 and segment.size:
        timestamp_ms = disk.modified_ms(segment.log.path)
    return timestamp_ms


def expired_count(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """Return how many segments, from the oldest on, may be deleted.

    Only whole segments below the high watermark. By time and size only with the policy `delete`,
    and then the last segment may expire as well.
    """
    deletes = "delete" in config.cleanup_policy
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment.end_offset > high_watermark or (is_last and not segment.size):
            break
        is_behind_start = segment.end_offset <= log_start_offset and not is_last
        is_old = (
            deletes
            and config.retention_ms >= 0
            and now_ms - segment.latest_ms > config.retention_ms
        )
        is_excess = deletes and config.retention_bytes >= 0 and excess >= segment.size
        if not (is_behind_start or is_old or is_excess):
            break
        excess -= segment.size
        count += 1
    return count


def next_expiry_ms(segments: Sequence[SegmentFacts], config: TopicConfig) -> int:
    """Return the time before which no segment expires by time."""
    if "delete" not in config.cleanup_policy or config.retention_ms < 0:
        return NEVER_MS
    if not segments or (len(segments) == 1 and not segments[0].size):
        return NEVER_MS
    return segments[0].latest_ms + config.retention_ms + 1
