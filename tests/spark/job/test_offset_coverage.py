from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.topic import TopicPartition
from millstream.spark.job.offset_coverage import (
    OffsetCoverage,
    OffsetGap,
    OffsetSpan,
    count_offsets,
    find_unread,
    format_gaps,
    limit_spans,
    offsets_json,
)

A = TopicPartition("orders", 0)
B = TopicPartition("orders", 1)


def test_batches_in_a_row_are_one_span() -> None:
    coverage = OffsetCoverage()
    for start in range(0, 100, 10):
        coverage = coverage.extended({A: OffsetSpan(start, start + 10)}, {"orders": "id"})
    assert coverage.spans == {A: (OffsetSpan(0, 100),)}
    assert coverage.end(A) == 100
    assert coverage.end(B) is None
    assert not list(coverage.gaps())


def test_gaps_are_listed() -> None:
    coverage = OffsetCoverage().extended({A: OffsetSpan(0, 10), B: OffsetSpan(5, 6)}, {})
    coverage = coverage.extended({A: OffsetSpan(20, 30)}, {})
    assert list(coverage.gaps()) == [OffsetGap(A, OffsetSpan(10, 20))]
    assert format_gaps(coverage.gaps()) == "orders-0 offsets 10 to 19"
    many = [OffsetGap(A, OffsetSpan(n, n + 1)) for n in range(7)]
    assert format_gaps(many).endswith("orders-0 offsets 4 to 4 and 2 more")


def test_nothing_is_covered_twice() -> None:
    coverage = OffsetCoverage().extended({A: OffsetSpan(0, 10)}, {})
    with pytest.raises(ValueError, match="orders-0 is covered up to 10: 9 would be covered twice"):
        coverage.extended({A: OffsetSpan(9, 12)}, {})


_SPANS = st.lists(st.integers(0, 50), min_size=2, max_size=12).map(
    lambda numbers: sorted(set(numbers))
)


@given(_SPANS, _SPANS)
def test_json_and_back(first: list[int], second: list[int]) -> None:
    coverage = OffsetCoverage()
    for place, cuts in ((A, first), (B, second)):
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            coverage = coverage.extended({place: OffsetSpan(start, end)}, {"orders": "some id"})
    assert OffsetCoverage.from_json(json.loads(json.dumps(coverage.as_json()))) == coverage


def test_the_offsets_of_the_log_after_an_archive() -> None:
    coverage = OffsetCoverage().extended(
        {
            A: OffsetSpan(0, 10),
            B: OffsetSpan(0, 10),
            TopicPartition("o", 2): OffsetSpan(0, 10),
            TopicPartition("o", 3): OffsetSpan(0, 10),
        },
        {},
    )
    log = {
        A: OffsetSpan(5, 15),
        B: OffsetSpan(12, 20),
        TopicPartition("o", 2): OffsetSpan(0, 10),
        TopicPartition("o", 3): OffsetSpan(0, 4),
        TopicPartition("o", 4): OffsetSpan(7, 9),
    }
    ranges, lost, beyond = find_unread(coverage, log)
    assert ranges == {
        A: OffsetSpan(10, 15),
        B: OffsetSpan(12, 20),
        TopicPartition("o", 2): OffsetSpan(10, 10),
        TopicPartition("o", 4): OffsetSpan(7, 9),
    }
    assert lost == [OffsetGap(B, OffsetSpan(10, 12))]
    assert beyond == [OffsetGap(TopicPartition("o", 3), OffsetSpan(4, 10))]


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 100), st.integers(0, 10_000))),
    st.integers(1, 20_000),
)
def test_a_limit_applies_to_all_partitions(rows: dict[int, tuple[int, int]], most: int) -> None:
    ranges = {
        TopicPartition("t", n): OffsetSpan(start, start + count)
        for n, (start, count) in rows.items()
    }
    taken = limit_spans(ranges, most)
    assert count_offsets(taken) <= most + len(ranges)
    for place, span in ranges.items():
        assert taken[place].start == span.start
        assert taken[place].end <= span.end
        assert (taken[place].size > 0) == (span.size > 0)
    assert limit_spans(ranges, None) == ranges


def test_offsets_as_the_source_takes_them() -> None:
    ranges = {A: OffsetSpan(1, 5), B: OffsetSpan(2, 6)}
    assert offsets_json(ranges, end=False) == {"orders": {"0": 1, "1": 2}}
    assert offsets_json(ranges, end=True) == {"orders": {"0": 5, "1": 6}}
