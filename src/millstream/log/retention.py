"""Which segments a log has outlived. Pure decisions over what is known of its segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.model.config import TopicConfig
from millstream.model.sentinel import INT64_MAX

#: Nothing will expire by time.
NEVER_MS: Final = INT64_MAX


class SegmentFacts(NamedTuple):
    """What retention needs to know of a segment."""

    size: int
    #: Its largest timestamp, or when its file was last written where no record has one.
    latest_ms: int
    #: The offset after it: the next segment's base offset or the log's end.
    end_offset: int


def expired_count(
    segments: Sequence[SegmentFacts],
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
) -> int:
    """How many segments, from the oldest on, may go.

    Only whole segments below the high watermark; by time and size only where the policy is to
    delete. A log that is not compacted may lose its last segment, too, once its time is over.
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
    """Before when no segment can expire by time."""
    if "delete" not in config.cleanup_policy or config.retention_ms < 0:
        return NEVER_MS
    if not segments or (len(segments) == 1 and not segments[0].size):
        return NEVER_MS
    return segments[0].latest_ms + config.retention_ms + 1
