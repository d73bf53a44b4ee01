from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.job.coverage import (
    Coverage,
    Gap,
    Place,
    Span,
    limited,
    listed,
    offsets_json,
    total,
    unread,
)

A = Place("orders", 0)
B = Place("orders", 1)


def test_batches_in_a_row_are_one_span() -> None:
    coverage = Coverage()
    for start in range(0, 100, 10):
        coverage = coverage.extended({A: Span(start, start + 10)}, {"orders": "id"})
    assert coverage.spans == {A: (Span(0, 100),)}
    assert coverage.end(A) == 100
    assert coverage.end(B) is None
    assert not list(coverage.gaps())


def test_gaps_are_kept_and_named() -> None:
    coverage = Coverage().extended({A: Span(0, 10), B: Span(5, 6)}, {})
    coverage = coverage.extended({A: Span(20, 30)}, {})
    assert list(coverage.gaps()) == [Gap(A, Span(10, 20))]
    assert listed(coverage.gaps()) == "orders-0 offsets 10 to 19"
    many = [Gap(A, Span(n, n + 1)) for n in range(7)]
    assert listed(many).endswith("orders-0 offsets 4 to 4 and 2 more")


def test_nothing_is_covered_twice() -> None:
    coverage = Coverage().extended({A: Span(0, 10)}, {})
    with pytest.raises(ValueError, match="orders-0 has offsets up to 10: 9 would be doubled"):
        coverage.extended({A: Span(9, 12)}, {})


_SPANS = st.lists(st.integers(0, 50), min_size=2, max_size=12).map(
    lambda numbers: sorted(set(numbers))
)


@given(_SPANS, _SPANS)
def test_json_and_back(first: list[int], second: list[int]) -> None:
    coverage = Coverage()
    for place, cuts in ((A, first), (B, second)):
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            coverage = coverage.extended({place: Span(start, end)}, {"orders": "some id"})
    assert Coverage.from_json(json.loads(json.dumps(coverage.as_json()))) == coverage


def test_what_a_log_has_beyond_an_archive() -> None:
    coverage = Coverage().extended(
        {A: Span(0, 10), B: Span(0, 10), Place("o", 2): Span(0, 10), Place("o", 3): Span(0, 10)}, {}
    )
    log = {
        A: Span(5, 15),
        B: Span(12, 20),
        Place("o", 2): Span(0, 10),
        Place("o", 3): Span(0, 4),
        Place("o", 4): Span(7, 9),
    }
    ranges, lost, beyond = unread(coverage, log)
    assert ranges == {
        A: Span(10, 15),
        B: Span(12, 20),
        Place("o", 2): Span(10, 10),
        Place("o", 4): Span(7, 9),
    }
    assert lost == [Gap(B, Span(10, 12))]
    assert beyond == [Gap(Place("o", 3), Span(4, 10))]


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 100), st.integers(0, 10_000))),
    st.integers(1, 20_000),
)
def test_a_limit_takes_from_all_and_is_kept(rows: dict[int, tuple[int, int]], most: int) -> None:
    ranges = {Place("t", n): Span(start, start + count) for n, (start, count) in rows.items()}
    taken = limited(ranges, most)
    assert total(taken) <= most + len(ranges)
    for place, span in ranges.items():
        assert taken[place].start == span.start
        assert taken[place].end <= span.end
        assert (taken[place].size > 0) == (span.size > 0)
    assert limited(ranges, None) == ranges


def test_offsets_as_the_source_takes_them() -> None:
    ranges = {A: Span(1, 5), B: Span(2, 6)}
    assert offsets_json(ranges, end=False) == {"orders": {"0": 1, "1": 2}}
    assert offsets_json(ranges, end=True) == {"orders": {"0": 5, "1": 6}}
