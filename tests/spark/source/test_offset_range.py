"""Split and limited ranges have no gaps and no overlaps."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millstream.model.topic import TopicPartition
from millstream.spark.source.offset_range import (
    OffsetRange,
    bound_offsets,
    limit_offsets,
    ranges_between,
    split_ranges,
)

_offsets = st.integers(0, 1 << 40)
_sizes = st.one_of(st.integers(0, 20), st.integers(0, 1 << 40))


@st.composite
def _ranges(draw: st.DrawFn) -> list[OffsetRange]:
    starts = draw(st.lists(st.tuples(_offsets, _sizes), max_size=6))
    return [
        OffsetRange("topic", index, start, start + size)
        for index, (start, size) in enumerate(starts)
    ]


@st.composite
def _ends(draw: st.DrawFn) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    ranges = draw(_ranges())
    return {one.key: one.start for one in ranges}, {one.key: one.end for one in ranges}


def _assert_same_offsets(parts: list[OffsetRange], wholes: list[OffsetRange]) -> None:
    assert all(part.size for part in parts)
    for whole in wholes:
        mine = [part for part in parts if part.key == whole.key]
        if not whole.size:
            assert mine == []
            continue
        assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)
        assert all(low.end == high.start for low, high in pairwise(mine))


@given(_ranges(), st.none() | st.integers(1, 200))
def test_split_into_at_least(ranges: list[OffsetRange], count: int | None) -> None:
    parts = split_ranges(ranges, parts_min=count)
    _assert_same_offsets(parts, ranges)
    total = sum(one.size for one in ranges)
    whole = len([one for one in ranges if one.size])
    least = min(count or 0, total)
    assert max(whole, least) <= len(parts) <= whole + least


@given(_ranges(), st.integers(1 << 33, 1 << 41), st.none() | st.integers(1, 50))
def test_split_by_size(ranges: list[OffsetRange], size: int, count: int | None) -> None:
    parts = split_ranges(ranges, count, size)
    _assert_same_offsets(parts, ranges)
    assert all(part.size <= size for part in parts)


def test_shares_follow_sizes() -> None:
    ranges = [OffsetRange("topic", 0, 0, 900), OffsetRange("topic", 1, 0, 100)]
    parts = split_ranges(ranges, parts_min=10)
    assert [part.partition for part in parts] == [0] * 9 + [1]


@given(_ends(), st.integers(1, 1 << 42))
def test_limit(
    ends: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], limit: int
) -> None:
    start, end = ends
    limited = limit_offsets(start, end, limit)
    assert limited.keys() == end.keys()
    assert all(start[key] <= limited[key] <= end[key] for key in end)
    taken = sum(limited[key] - start[key] for key in end)
    total = sum(end[key] - start[key] for key in end)
    assert taken <= min(limit + len(end), total)
    # Every partition with records advances, so that no partition starves.
    assert all(limited[key] > start[key] for key in end if end[key] > start[key])


@given(_ends(), st.integers(1, 1 << 42))
def test_batches_join_without_gap(
    ends: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], limit: int
) -> None:
    start, end = ends
    limit = max(limit, sum(end[key] - start[key] for key in end) // 20 + 1)
    read: list[OffsetRange] = []
    position = start
    while position != end:
        following = limit_offsets(position, end, limit)
        read += ranges_between(position, following)
        position = following
    _assert_same_offsets(read, [OffsetRange(*key, start[key], end[key]) for key in end])


def test_partitions_beyond_the_target_are_left_out() -> None:
    old, grown, new = (TopicPartition("topic", number) for number in range(3))
    end = bound_offsets(
        start={old: 50, grown: 5}, end={old: 60, grown: 30, new: 7}, target={old: 40, grown: 20}
    )
    assert end == {old: 50, grown: 20}


def test_a_truncated_partition_ends_at_its_new_end() -> None:
    key = TopicPartition("topic", 0)
    assert bound_offsets({key: 50}, {key: 10}, {key: 60}) == {key: 10}
