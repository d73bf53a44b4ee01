"""The order and the totals of records that were spread over partitions."""

from __future__ import annotations

import doctest
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.hot_keys import merging
from millstream.client.hot_keys.merging import MergeOverflowError, OrderedMerge, PartialTotals
from millstream.client.hot_keys.salting import Salting, Turn, turn_of

PARTITIONS = 7
KEYS = [b"hot", b"also hot", b"cold"]
#: A record of these tests: key, producer, and number among the producer's records of the key.
Record = tuple[bytes, int, int]
Entry = tuple[bytes, Turn | None, Record]


def write(choices: list[tuple[int, int]], spread: int) -> list[list[Entry]]:
    """Return the partitions after producers wrote in this order."""
    producers = [Salting(set(KEYS[:2]), spread) for _ in range(2)]
    logs: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
    numbers: dict[tuple[bytes, int], int] = defaultdict(int)
    for producer, which in choices:
        key = KEYS[which]
        place = producers[producer].place(key, PARTITIONS)
        record = (key, producer, numbers[key, producer])
        numbers[key, producer] += 1
        logs[place.partition].append((key, turn_of(place.headers), record))
    return logs


def read(merge: OrderedMerge[Record], logs: list[list[Entry]], data: st.DataObject) -> list[Record]:
    """Read all partitions to their ends, interleaved at random."""
    positions = [0] * len(logs)
    released: list[Record] = []
    while open_logs := [n for n, log in enumerate(logs) if positions[n] < len(log)]:
        number = data.draw(st.sampled_from(open_logs))
        released += merge.push(*logs[number][positions[number]])
        positions[number] += 1
    return released


choices = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=60)


def in_order(records: list[Record]) -> bool:
    latest: dict[tuple[bytes, int], int] = {}
    for key, producer, number in records:
        if number <= latest.get((key, producer), -1):
            return False
        latest[key, producer] = number
    return True


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(choices, st.integers(1, 9), st.data())
def test_every_record_is_released_once_and_in_order(
    written: list[tuple[int, int]], spread: int, data: st.DataObject
) -> None:
    logs = write(written, spread)
    merge: OrderedMerge[Record] = OrderedMerge()
    released = read(merge, logs, data)
    assert merge.held == 0
    assert in_order(released)
    assert sorted(released) == sorted(record for log in logs for *_, record in log)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(choices, st.integers(1, 9), st.data())
def test_missing_records_do_not_block_others_forever(
    written: list[tuple[int, int]], spread: int, data: st.DataObject
) -> None:
    """Some records were never written, and reading starts in the middle."""
    logs = [[entry for entry in log if data.draw(st.booleans())] for log in write(written, spread)]
    merge: OrderedMerge[Record] = OrderedMerge()
    released = read(merge, logs, data)
    assert merge.held == len(merge.waiting())
    released += merge.drain()
    assert (merge.held, merge.waiting()) == (0, [])
    assert in_order(released)
    assert sorted(released) == sorted(record for log in logs for *_, record in log)


def turn(number: int, spread: int = 3, session: str = "s") -> Turn:
    return Turn(session, number, spread)


def test_a_number_that_its_partition_has_passed_is_not_awaited() -> None:
    merge: OrderedMerge[int] = OrderedMerge()
    assert merge.push(b"k", turn(0), 0) == [0]
    assert merge.push(b"k", turn(2), 2) == []
    assert merge.push(b"k", turn(3), 3) == []
    assert merge.push(b"k", turn(4), 4) == [2, 3, 4]


def test_a_record_that_is_read_again_is_released_again() -> None:
    merge: OrderedMerge[str] = OrderedMerge()
    assert merge.push(b"k", turn(0), "a") == ["a"]
    assert merge.push(b"k", turn(0), "a again") == ["a again"]
    assert merge.push(b"k", turn(2), "c") == []
    assert merge.push(b"k", turn(2), "c again") == []
    assert merge.held == 1
    assert merge.push(b"k", turn(1), "b") == ["b", "c again"]


def test_records_after_a_drain_do_not_wait_for_earlier_ones() -> None:
    merge: OrderedMerge[int] = OrderedMerge()
    assert merge.push(b"k", turn(5), 5) == []
    assert merge.drain() == [5]
    assert merge.push(b"k", turn(7), 7) == []
    assert merge.push(b"k", turn(6), 6) == [6, 7]
    assert merge.push(b"k", turn(4), 4) == [4]


def test_waiting_is_bounded_and_an_awaited_record_is_accepted() -> None:
    merge: OrderedMerge[int] = OrderedMerge(held_max=2)
    assert merge.push(b"k", turn(1), 1) == []
    assert merge.push(b"k", turn(2), 2) == []
    for key, session in ((b"k", "s"), (b"other", "s"), (b"k", "t")):
        with pytest.raises(MergeOverflowError, match="2 records"):
            merge.push(key, turn(4, session=session), 4)
    assert merge.push(b"cold", None, 9) == [9]
    assert merge.push(b"k", turn(0), 0) == [0, 1, 2]
    assert merge.held == 0


def test_unused_series_are_dropped() -> None:
    merge: OrderedMerge[int] = OrderedMerge(series_max=3)
    assert merge.push(b"k", turn(1, session="waits"), 1) == []
    for number in range(10):
        assert merge.push(b"k", turn(0, session=f"s{number}"), number) == [number]
    assert merge.push(b"k", turn(0, session="waits"), 0) == [0, 1]


def test_totals_of_sources_are_combined() -> None:
    totals: PartialTotals[int] = PartialTotals(max)
    for source, part in ((0, 3), (1, 9), (2, 4), (1, 9)):
        totals.update(b"k", source, part)
    assert totals.total(b"k") == 9
    with pytest.raises(KeyError):
        totals.total(b"unknown")


def test_the_example_runs() -> None:
    assert doctest.testmod(merging).failed == 0
