from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.in_process.log_home import NOW_MS, SMALL, LogHome, append, make_batch
from millstream.log.log import PartitionLog
from millstream.log.reading import backlog
from millstream.log.reading.backlog import (
    UNBOUNDED,
    RetentionBound,
    UnreadBatch,
    first_unread_batch,
    retention_bound,
)
from millstream.records.builder import build_batch
from millstream.records.record import Record

SECOND_MS = 1000


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path)


def fill(log: PartitionLog, count: int, *, per_batch: int = 1) -> None:
    """Append batches one second apart, the first at NOW_MS."""
    for number in range(count):
        append(log, make_batch(per_batch, timestamp=NOW_MS + number * SECOND_MS))


def append_marker(log: PartitionLog) -> None:
    record = Record(log.log_end_offset, NOW_MS, b"\0\0\0\1", b"\0\0\0\0\0\0", [])
    batch = build_batch(
        [record], base_offset=log.log_end_offset, producer_id=5, producer_epoch=0, is_control=True
    )
    log.append_as_follower(memoryview(batch))


def test_the_time_of_every_record_over_many_segments(home: LogHome) -> None:
    log = home.open()
    fill(log, 100)
    assert len(log.segments) > 3
    for log_now in (log, home.reopen(clean=True), home.reopen(clean=False)):
        for offset in range(100):
            assert first_unread_batch(log_now, offset, 100) == UnreadBatch(
                NOW_MS + offset * SECOND_MS
            )
        assert first_unread_batch(log_now, 100, 100) is None


def test_inside_a_batch_its_first_timestamp_counts(home: LogHome) -> None:
    log = home.open()
    fill(log, 5, per_batch=10)
    assert first_unread_batch(log, 29, 50) == UnreadBatch(NOW_MS + 2 * SECOND_MS)
    assert first_unread_batch(log, 30, 50) == UnreadBatch(NOW_MS + 3 * SECOND_MS)


def test_uncommitted_records_are_not_unread(home: LogHome) -> None:
    log = home.open()
    fill(log, 10)
    assert first_unread_batch(log, 5, 6) == UnreadBatch(NOW_MS + 5 * SECOND_MS)
    assert first_unread_batch(log, 6, 6) is None


def test_markers_at_the_end_are_not_unread(home: LogHome) -> None:
    log = home.open()
    fill(log, 3)
    append_marker(log)
    assert first_unread_batch(log, 3, 4) is None
    append(log, make_batch(timestamp=NOW_MS + 9))
    assert first_unread_batch(log, 3, 5) == UnreadBatch(NOW_MS + 9)


def test_records_without_a_time(home: LogHome) -> None:
    log = home.open()
    append(log, make_batch(timestamp=-1))
    assert first_unread_batch(log, 0, 1) == UnreadBatch(None)


def test_append_time_is_the_brokers(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, message_timestamp_type="LogAppendTime")
    log = LogHome(tmp_path, config).open()
    append(log, make_batch(timestamp=5))
    assert first_unread_batch(log, 0, 1) == UnreadBatch(NOW_MS)


def test_the_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(SMALL, segment_bytes=1 << 20, index_interval_bytes=1 << 20)
    home = LogHome(tmp_path, config)
    log = home.open()
    fill(log, 200)
    log = home.reopen(clean=True)
    monkeypatch.setattr(backlog, "HEADERS_READ_MAX", 50)
    found = first_unread_batch(log, 150, 200)
    assert found == UnreadBatch(NOW_MS + 48 * SECOND_MS), "the last header that was looked at"


def test_the_search_rebuilds_no_missing_index(home: LogHome) -> None:
    log = home.open()
    fill(log, 100)
    home.stop(clean=True)
    for index in home.log_path.glob("*.index"):
        index.unlink()
    log = home.open()
    assert first_unread_batch(log, 10, 100) == UnreadBatch(None)
    assert not (home.log_path / f"{0:020d}.index").exists()


# Retention


def test_time_counts_from_the_newest_record_of_the_segment(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, retention_ms=60_000)
    log = LogHome(tmp_path, config).open()
    fill(log, 100)
    while len(log.segments) > 1:
        first, second = (segment.base_offset for segment in log.segments[:2])
        until_ms = NOW_MS + (second - 1) * SECOND_MS + 60_000
        assert (
            retention_bound(log, first)
            == retention_bound(log, second - 1)
            == RetentionBound(until_ms, None)
        )
        # Retention deletes the segment then, and not before.
        assert not log.expire(until_ms, 100)
        assert log.expire(until_ms + 1, 100)
        assert log.log_start_offset == second


def test_size_counts_the_later_segments(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, retention_ms=-1, retention_bytes=10_000)
    log = LogHome(tmp_path, config).open()
    fill(log, 50)
    second = log.segments[1].base_offset
    left = retention_bound(log, 0).bytes_left
    assert left is not None
    while left > 0:
        assert not log.expire(NOW_MS, log.log_end_offset), f"{left} bytes too early"
        fill(log, 1)
        left = retention_bound(log, 0).bytes_left
        assert left is not None
    assert log.expire(NOW_MS, log.log_end_offset)
    assert log.segments[0].base_offset == second


def test_without_retention_there_is_no_bound(tmp_path: Path) -> None:
    for number, config in enumerate(
        (
            dataclasses.replace(SMALL, retention_ms=-1, retention_bytes=-1),
            dataclasses.replace(SMALL, retention_ms=5, cleanup_policy=frozenset({"compact"})),
        )
    ):
        log = LogHome(tmp_path / str(number), config).open()
        assert retention_bound(log, 0) == UNBOUNDED
        fill(log, 10)
        assert retention_bound(log, 0) == UNBOUNDED
