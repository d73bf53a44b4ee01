"""Which partitions and headers the records of hot keys get."""

from __future__ import annotations

import doctest
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.hot_keys import salting as module
from millstream.client.hot_keys.salting import (
    HEADER,
    SPREAD_MAX,
    HotKeys,
    Salting,
    Turn,
    turn_of,
)
from millstream.client.producer.partitioner import by_key


def turns(salting: Salting, key: bytes, partitions: int, count: int) -> list[tuple[int, Turn]]:
    found = []
    for _ in range(count):
        place = salting.place(key, partitions)
        turn = turn_of(place.headers)
        assert turn is not None
        found.append((place.partition, turn))
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(), st.integers(1, 50), st.integers(1, 60))
def test_a_hot_key_rotates_from_its_home(key: bytes, partitions: int, spread: int) -> None:
    placed = turns(Salting({key}, spread), key, partitions, 3 * spread)
    used = min(spread, partitions)
    home = by_key(key, partitions)
    assert [turn.number for _, turn in placed] == list(range(3 * spread))
    assert {turn.spread for _, turn in placed} == {used}
    assert len({turn.session for _, turn in placed}) == 1
    assert [partition for partition, _ in placed] == [
        (home + turn.slot) % partitions for _, turn in placed
    ]
    counts = Counter(partition for partition, _ in placed)
    assert len(counts) == used
    assert max(counts.values()) - min(counts.values()) <= 1


def test_other_keys_stay_in_their_home_partition() -> None:
    salting = Salting({b"hot"}, 4, home=lambda key, partitions: len(key) % partitions)
    for _ in range(5):
        assert salting.place(b"cold", 8) == (4, [])
    assert [salting(b"hot", 8) for _ in range(5)] == [3, 4, 5, 6, 3]
    assert [salting(None, 3) for _ in range(4)] == [0, 1, 2, 0]


def test_producers_have_turns_of_their_own() -> None:
    sessions = {turns(Salting({b"k"}, 2), b"k", 4, 1)[0][1].session for _ in range(10)}
    assert len(sessions) == 10


def test_a_new_partition_count_begins_a_new_series() -> None:
    salting = Salting({b"k"}, 2)
    ((_, before),) = turns(salting, b"k", 4, 1)
    ((_, after),) = turns(salting, b"k", 8, 1)
    assert (before.number, after.number) == (0, 0)
    assert before.session != after.session


def test_a_key_becomes_hot_and_stays_so() -> None:
    salting = Salting(HotKeys(share=0.5, records_min=10, window=100), 3)
    home = by_key(b"k", 9)
    places = [salting.place(b"k", 9) for _ in range(12)]
    assert places[:9] == [(home, [])] * 9
    assert [place.partition for place in places[9:]] == [(home + n) % 9 for n in range(3)]
    for number in range(200):
        assert salting.place(b"%d" % number, 9).headers == []
    ((_, turn),) = turns(salting, b"k", 9, 1)
    assert turn.number == 3


def test_recent_records_decide_which_keys_are_hot() -> None:
    hot = HotKeys(share=0.5, records_min=10, window=100)
    for _ in range(100):
        hot.observe(b"before")
    for number in range(60):
        hot.observe(b"now" if number % 2 else b"%d" % number)
    assert not hot.observe(b"before")


@pytest.mark.parametrize(
    "data", [b"", b"s:1", b"s:x:2", b"s:-1:2", b"s:1:0", b"s:1:1000000", b"\xff:1:2"]
)
def test_malformed_turns_raise(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - several reasons
        turn_of([("other", b"x"), (HEADER, data)])


def test_records_without_the_header_have_no_turn() -> None:
    assert turn_of(None) is None
    assert turn_of([("other", b"x"), (HEADER, None)]) is None


def test_wrong_use_raises() -> None:
    for spread in (0, SPREAD_MAX + 1):
        with pytest.raises(ValueError, match="spread"):
            Salting(set(), spread)
    with pytest.raises(ValueError, match="at least 1"):
        Salting(set(), 1).place(b"k", 0)
    with pytest.raises(ValueError, match="share"):
        HotKeys(share=0)


def test_the_examples_run() -> None:
    assert doctest.testmod(module).failed == 0
