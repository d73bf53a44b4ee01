from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.log.compaction.cleanable import (
    Candidate,
    CleanState,
    find_candidate,
    first_dirty_offset,
    limit_offset,
)
from millstream.model.config import TopicConfig

NOW_MS = 1_700_000_000_000


@dataclass
class StubSegment:
    base_offset: int
    size: int = 100
    max_timestamp: int = NOW_MS - 10_000
    first_timestamp: int = NOW_MS - 20_000
    indexes_checked: bool = True

    def load_max_timestamp(self) -> int:
        return self.max_timestamp


@dataclass
class StubLog:
    """Return a log with segments of ten offsets each, the last one active."""

    segments: list[StubSegment] = field(
        default_factory=lambda: [StubSegment(base) for base in (0, 10, 20, 30)]
    )
    config: TopicConfig = field(default_factory=TopicConfig)
    log_start_offset: int = 0
    log_end_offset: int = 35
    recovery_point: int = 35
    open_transaction: int = 1 << 60

    def last_stable_offset(self, high_watermark: int) -> int:
        return min(high_watermark, self.open_transaction)


def find(log: StubLog, first_dirty: int = 0, limit: int = 35) -> Candidate | None:
    stub: Any = log
    return find_candidate(stub, first_dirty, limit, NOW_MS)


@pytest.mark.parametrize(
    ("checkpoint", "expected"), [(None, 5), (3, 5), (5, 5), (20, 20), (35, 35), (36, 5)]
)
def test_a_checkpoint_outside_the_log_is_ignored(checkpoint: int | None, expected: int) -> None:
    log: Any = StubLog(log_start_offset=5)
    assert first_dirty_offset(log, checkpoint) == expected


def test_all_closed_segments_can_be_cleaned() -> None:
    found = find(StubLog())
    assert found is not None
    assert (found.first_dirty_offset, found.end_offset, found.dirty_ratio) == (0, 30, 1.0)
    assert found.is_wanted


@pytest.mark.parametrize(
    ("limit", "end"), [(35, 30), (30, 30), (29, 20), (20, 20), (19, 10), (9, None), (0, None)]
)
def test_the_end_is_the_segment_boundary_below_the_limit(limit: int, end: int | None) -> None:
    found = find(StubLog(), limit=limit)
    assert (found.end_offset if found else None) == end


def test_the_limit_is_committed_and_on_disk() -> None:
    log: Any = StubLog(recovery_point=20)
    assert limit_offset(log, 30) == 20
    assert limit_offset(log, 10) == 10


def test_the_ratio_is_dirty_bytes_of_all_bytes() -> None:
    log = StubLog()
    log.segments[2].size = 50
    found = find(log, first_dirty=20)
    assert found is not None
    assert found.dirty_ratio == pytest.approx(50 / 250)
    assert not found.is_wanted
    # A partly cleaned segment counts as dirty.
    found = find(log, first_dirty=15)
    assert found is not None
    assert found.dirty_ratio == pytest.approx(150 / 250)


def test_a_clean_or_empty_log_is_no_candidate() -> None:
    assert find(StubLog(), first_dirty=30) is None
    assert find(StubLog(segments=[])) is None
    assert find(StubLog(segments=[StubSegment(0)])) is None
    log = StubLog()
    log.segments[2].size = 0
    assert find(log, first_dirty=20) is None


def test_min_compaction_lag_holds_young_dirty_segments_back() -> None:
    log = StubLog(config=TopicConfig(min_compaction_lag_ms=5_000))
    log.segments[1].max_timestamp = NOW_MS - 4_999
    found = find(log)
    assert found is not None
    assert found.end_offset == 10
    # Clean segments stay cleanable.
    found = find(log, first_dirty=20)
    assert found is not None
    assert found.end_offset == 30


def test_max_compaction_lag_makes_a_log_overdue() -> None:
    log = StubLog(config=TopicConfig(max_compaction_lag_ms=20_000, min_cleanable_dirty_ratio=1.0))
    found = find(log)
    assert found is not None
    assert not found.is_wanted
    log.segments[2].first_timestamp -= 1
    found = find(log)
    assert found is not None
    assert found.is_overdue
    assert found.is_wanted
    log.segments[1].first_timestamp = -1
    found = find(log, first_dirty=10, limit=20)
    assert found is not None
    assert not found.is_overdue, "a record without a timestamp has no age"


def test_an_unchanged_log_is_not_examined_again() -> None:
    log: Any = StubLog()
    quiet = CleanState.of(log, 30, NOW_MS, 0.2)
    assert quiet.is_unchanged(log, 30, NOW_MS + 10**12)
    assert not quiet.is_unchanged(log, 31, NOW_MS)
    log.log_end_offset += 1
    assert not quiet.is_unchanged(log, 30, NOW_MS)
    log.config = TopicConfig(min_compaction_lag_ms=5)
    quiet = CleanState.of(log, 30, NOW_MS, 0.2)
    assert quiet.is_unchanged(log, 30, NOW_MS + 1000)
    assert not quiet.is_unchanged(log, 30, NOW_MS + 10**6)
    log.config = TopicConfig()
    assert not quiet.is_unchanged(log, 30, NOW_MS)


@pytest.mark.parametrize(("first_open", "end"), [(30, 30), (29, 20), (10, 10), (9, None)])
def test_nothing_is_cleaned_past_an_open_transaction(first_open: int, end: int | None) -> None:
    candidate = find(StubLog(open_transaction=first_open))
    assert (candidate.end_offset if candidate else None) == end
