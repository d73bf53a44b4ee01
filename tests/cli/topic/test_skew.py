from __future__ import annotations

import pytest

from millstream.cli.support.message import TextMessage
from millstream.cli.support.position import Range
from millstream.cli.topic.skew import KEY_BYTES_MAX, KeyTally, partition_loads, sample_starts


def test_partitions_are_compared_with_an_even_share() -> None:
    loads = partition_loads({0: Range(10, 20), 1: Range(0, 80), 2: Range(5, 5), 3: Range(0, 10)})
    assert [(load.partition, load.records, load.share, load.ratio) for load in loads] == [
        (1, 80, 0.8, 3.2),
        (0, 10, 0.1, 0.4),
        (3, 10, 0.1, 0.4),
        (2, 0, 0.0, 0.0),
    ]
    assert [load.is_hot for load in loads] == [True, False, False, False]
    assert [load.share for load in partition_loads({0: Range(3, 3)})] == [0.0]


def test_a_sample_has_the_newest_records_of_each_partition_in_proportion() -> None:
    ranges = {0: Range(100, 1100), 1: Range(0, 9000), 2: Range(7, 7), 3: Range(0, 1)}
    assert sample_starts(ranges, 20_000) == {0: 100, 1: 0, 2: 7, 3: 0}
    starts = sample_starts(ranges, 1000)
    sizes = {partition: ranges[partition].end - first for partition, first in starts.items()}
    assert sizes == {0: 100, 1: 900, 2: 0, 3: 1}


def message(key: bytes | None, partition: int = 0, value: bytes = b"") -> TextMessage:
    return TextMessage(key, value, [], partition=partition)


def test_shares_of_keys_are_of_all_records() -> None:
    tally = KeyTally(10, by_bytes=False)
    for number in range(8):
        tally.add(message(b"hot", number % 2))
    tally.add(message(b"cold", 3))
    tally.add(message(None))
    first, second = tally.top(5)
    assert first == (b"hot", 0.8, 0.8, [0, 1])
    assert second == (b"cold", 0.1, 0.1, [3])
    assert (tally.records, tally.error_share) == (10, 0.0)
    assert tally.keyless_share == pytest.approx(0.1)


def test_by_bytes_counts_sizes() -> None:
    tally = KeyTally(10, by_bytes=True)
    tally.add(message(b"large", value=b"x" * 85))
    for _ in range(2):
        tally.add(message(b"small"))
    assert tally.top(1) == [(b"large", 0.9, 0.9, [0])]


def test_capacity_bounds_memory() -> None:
    tally = KeyTally(50, by_bytes=False)
    for number in range(5000):
        tally.add(message(b"%d" % number, number % 7))
        if number % 4 == 0:
            tally.add(message(b"hot", 5))
    (hottest,) = tally.top(1)
    assert hottest.key == b"hot"
    assert hottest.partitions == [5]
    assert hottest.at_least <= 0.2 <= hottest.at_most
    assert hottest.at_most - hottest.at_least <= tally.error_share <= 1 / 50
    assert len(tally._partitions) <= 100


def test_long_keys_are_shortened_and_stay_distinct() -> None:
    tally = KeyTally(10, by_bytes=False)
    for last in (b"a", b"b", b"b"):
        tally.add(message(b"k" * 10_000 + last))
    loads = tally.top(5)
    assert [len(load.key) for load in loads] == [KEY_BYTES_MAX] * 2
    assert [load.at_least for load in loads] == [2 / 3, 1 / 3]
