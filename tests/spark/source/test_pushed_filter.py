"""The source evaluates a filter exactly, or leaves it to Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from millstream.spark.source.offset_range import OffsetRange
from millstream.spark.source.pushed_filter import push_filters

_RANGES = [OffsetRange(topic, part, 5, 15) for topic in "ab" for part in range(3)]
_TESTS = {
    EqualTo: lambda one, value: one == value,
    GreaterThan: lambda one, value: one > value,
    GreaterThanOrEqual: lambda one, value: one >= value,
    LessThan: lambda one, value: one < value,
    LessThanOrEqual: lambda one, value: one <= value,
    In: lambda one, value: one in value,
}
_numbers = st.integers(-2, 20)
_filters = st.one_of(
    st.tuples(
        st.sampled_from([kind for kind in _TESTS if kind is not In]),
        st.sampled_from(["partition", "offset"]),
        _numbers,
    ),
    st.tuples(st.just(In), st.just("partition"), st.lists(_numbers, max_size=3).map(tuple)),
    st.tuples(st.just(EqualTo), st.just("topic"), st.sampled_from("abc")),
    st.tuples(st.just(In), st.just("topic"), st.sampled_from([("a",), ("a", "b"), ("c",)])),
)


@given(st.lists(_filters, max_size=4))
def test_ranges_contain_the_records_that_match_the_filters(
    chosen: list[tuple[type, str, object]],
) -> None:
    range_filter, left = push_filters([kind((name,), value) for kind, name, value in chosen])
    assert left == []
    found = {
        (one.topic, one.partition, offset)
        for one in range_filter.apply(_RANGES)
        for offset in range(one.start, one.end)
    }
    names = ("topic", "partition", "offset")
    assert found == {
        row
        for one in _RANGES
        for row in ((one.topic, one.partition, offset) for offset in range(one.start, one.end))
        if all(_TESTS[kind](row[names.index(name)], value) for kind, name, value in chosen)
    }


def test_filters_that_spark_applies() -> None:
    filters: list[Filter] = [
        EqualTo(("value",), b"x"),
        Not(EqualTo(("partition",), 1)),
        IsNull(("key",)),
        In(("offset",), (1, 2)),
    ]
    range_filter, left = push_filters([*filters, IsNotNull(("offset",))])
    assert left == filters
    assert range_filter.apply(_RANGES) == _RANGES


def test_a_timestamp_filter_moves_the_start_and_stays_with_spark() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    late, early = GreaterThan(("timestamp",), moment), LessThan(("timestamp",), moment)
    range_filter, left = push_filters([late, early])
    assert left == [late, early]
    assert range_filter.timestamp_ms is not None
    assert 0 <= moment.timestamp() * 1000 - range_filter.timestamp_ms <= 1
