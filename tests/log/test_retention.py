from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.in_process.log_home import NOW_MS, LogHome, append, make_batch, read_values
from millstream.log.retention import NEVER_MS, SegmentFacts, expired_count, next_expiry_ms
from millstream.model.config import TopicConfig

NewHome = Callable[..., LogHome]

#: Three segments of 100 bytes and an active one of 10, one second apart.
FACTS = [
    SegmentFacts(100, 1000, 10),
    SegmentFacts(100, 2000, 20),
    SegmentFacts(100, 3000, 30),
    SegmentFacts(10, 4000, 31),
]


@pytest.mark.parametrize(
    ("config", "now_ms", "start", "high_watermark", "count"),
    [
        (TopicConfig(retention_ms=1000), 2000, 0, 31, 0),
        (TopicConfig(retention_ms=1000), 2001, 0, 31, 1),
        (TopicConfig(retention_ms=1000), 9000, 0, 31, 4),
        (TopicConfig(retention_ms=1000), 9000, 0, 25, 2),
        (TopicConfig(retention_ms=-1), 1 << 60, 0, 31, 0),
        (TopicConfig(retention_ms=-1, retention_bytes=210), 0, 0, 31, 1),
        (TopicConfig(retention_ms=-1, retention_bytes=211), 0, 0, 31, 0),
        (TopicConfig(retention_ms=-1, retention_bytes=0), 0, 0, 31, 4),
        (TopicConfig(retention_ms=-1), 0, 20, 31, 2),
        (TopicConfig(retention_ms=-1), 0, 31, 31, 3),
        (TopicConfig(retention_ms=1, cleanup_policy=frozenset({"compact"})), 1 << 60, 0, 31, 0),
        (TopicConfig(retention_ms=1, cleanup_policy=frozenset({"compact"})), 1 << 60, 10, 31, 1),
    ],
)
def test_expired_segments_by_time_size_and_start(
    config: TopicConfig, now_ms: int, start: int, high_watermark: int, count: int
) -> None:
    assert expired_count(FACTS, config, now_ms, start, high_watermark) == count


def test_next_expiry_is_the_oldest_segments_retention() -> None:
    assert next_expiry_ms(FACTS, TopicConfig(retention_ms=1000)) == 2001
    assert next_expiry_ms(FACTS, TopicConfig(retention_ms=-1)) == NEVER_MS
    assert next_expiry_ms([], TopicConfig()) == NEVER_MS


def test_expired_segments_go_whole(new_home: NewHome) -> None:
    home = new_home(TopicConfig(segment_bytes=1000, retention_ms=100))
    log = home.open()
    for number in range(20):
        append(log, make_batch(1, b"v" * 200, NOW_MS + number * 10))
    assert log.expire(NOW_MS + 150, log.log_end_offset)
    start = log.log_start_offset
    assert 0 < start <= 6
    assert [offset for offset, _ in read_values(log)] == list(range(start, 20))
    assert log.expire(NOW_MS + 150, log.log_end_offset) == []
    # Everything is old, so the active segment is rolled and deleted as well.
    paths = log.expire(NOW_MS + 10_000, log.log_end_offset)
    assert all(path.exists() for path in paths)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    assert log.size_bytes == 0
    log = home.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    assert append(log).base_offset == 20
    assert not any(path.exists() for path in paths)


def test_nothing_above_the_high_watermark_is_removed(new_home: NewHome) -> None:
    log = new_home(TopicConfig(segment_bytes=1000, retention_ms=100)).open()
    for _ in range(20):
        append(log, make_batch(1, b"v" * 200))
    log.expire(NOW_MS + 10_000, 7)
    assert 0 < log.log_start_offset <= 7


def test_deleted_records_free_their_segments(new_home: NewHome) -> None:
    home = new_home(TopicConfig(segment_bytes=1000, retention_ms=-1))
    log = home.open()
    for _ in range(20):
        append(log, make_batch(1, b"v" * 200))
    segments = len(log.segments)
    log.advance_start(11)
    assert log.expire(NOW_MS, 20)
    assert len(log.segments) < segments
    assert log.log_start_offset == 11
    assert [offset for offset, _ in read_values(log)] == list(range(11, 20))
    assert home.reopen(clean=True).log_start_offset == 11
