from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.topic import TopicPartition
from millstream.spark.job.job_error import JobError
from millstream.spark.job.offset_coverage import OffsetSpan
from millstream.spark.job.replaying.replay_plan import (
    ReplayLog,
    ReplayPlan,
    ReplayPosition,
    ReplaySelection,
    chunk_size,
    pause_s,
)

CHOICE = ReplaySelection("orders", "again", keys=("6b",), where="offset > 3", since_ms=5)
RANGED = replace(CHOICE, ranges=((0, 1, 9),))


@given(
    st.dictionaries(
        st.integers(0, 5),
        st.tuples(st.integers(0, 50), st.integers(0, 200)).map(lambda t: OffsetSpan(t[0], sum(t))),
    ),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_chunks_have_each_offset_once(ranges: dict[int, OffsetSpan], size: int, later: int) -> None:
    plan = ReplayPlan("id", CHOICE, ranges, size)
    position = ReplayPosition(1, plan, {})
    seen: list[tuple[int, int]] = []
    while chunk := position.plan.chunk(position.done):
        for place, span in chunk.items():
            seen += [(place.partition, offset) for offset in range(*span)]
        position = position.after(chunk, 1, later)
    wanted = [(partition, offset) for partition, span in ranges.items() for offset in range(*span)]
    assert sorted(seen) == sorted(wanted)
    assert position.sent == position.number - 1


def test_json_and_back() -> None:
    plan = ReplayPlan("id", RANGED, {0: OffsetSpan(1, 9), 3: OffsetSpan(0, 0)}, 7)
    assert ReplayPlan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_a_state_folder_belongs_to_one_replay(tmp_path: Path) -> None:
    log = ReplayLog(tmp_path)
    assert log.position(CHOICE) is None
    first = ReplayPosition(1, ReplayPlan("id", CHOICE, {0: OffsetSpan(0, 9)}, 4), {})
    with log.lock():
        log.append(first)
        second = first.after({TopicPartition("orders", 0): OffsetSpan(0, 4)}, 3, chunk_records=2)
        log.append(second)
    assert log.position(CHOICE) == second
    assert second.plan.chunk(second.done) == {TopicPartition("orders", 0): OffsetSpan(4, 6)}
    later = ReplaySelection("orders", "again", keys=("6b",), where="offset > 3", since_ms=6)
    assert log.position(later, may_differ=("since_ms",)) == second
    with pytest.raises(JobError, match="differs in since_ms"):
        log.position(later)
    with pytest.raises(JobError, match="another replay, which differs in to, where:"):
        log.position(ReplaySelection("orders", "elsewhere", keys=("6b",), since_ms=5))


@given(st.floats(0.1, 1e6), st.lists(st.tuples(st.integers(0, 500_000), st.floats(0, 100))))
def test_chunks_keep_the_rate(rate: float, chunks: list[tuple[int, float]]) -> None:
    """The rate is kept for any sizes and durations of chunks."""
    for sent, took_s in chunks:
        assert pause_s(None, sent, took_s) == 0
        waited_s = pause_s(rate, sent, took_s)
        assert waited_s >= 0
        assert sent <= rate * (took_s + waited_s) * (1 + 1e-9)
        assert waited_s == 0 or sent >= rate * (took_s + waited_s) * (1 - 1e-9), "for nothing"


def test_the_size_of_chunks_under_a_rate() -> None:
    assert chunk_size(None, 1000) == 1000
    assert chunk_size(100, 1000) == 500
    assert chunk_size(1e6, 1000) == 1000
    assert chunk_size(0.1, 1000) == 1
