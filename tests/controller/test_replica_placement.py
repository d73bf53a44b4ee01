from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.controller.replica_placement import PlacementBroker, place_partitions
from millstream.model.error import BrokerError, ErrorCode


@given(
    brokers=st.integers(1, 9),
    racks=st.integers(1, 4),
    partitions=st.integers(0, 40),
    factor=st.integers(1, 9),
    start=st.integers(0, 100),
)
def test_replicas_are_distinct_and_leaders_are_balanced(
    brokers: int, racks: int, partitions: int, factor: int, start: int
) -> None:
    factor = min(factor, brokers)
    places = [PlacementBroker(broker, f"rack-{broker % racks}") for broker in range(brokers)]
    assignment = place_partitions(places, partitions, factor, start)
    assert len(assignment) == partitions
    assert all(len(set(replicas)) == factor for replicas in assignment)
    leaders = [replicas[0] for replicas in assignment]
    counts = [leaders.count(broker) for broker in range(brokers)]
    assert max(counts) - min(counts) <= 1


@given(
    racks=st.lists(st.sampled_from("abcd"), min_size=1, max_size=9),
    partitions=st.integers(1, 30),
    factor=st.integers(1, 9),
    start=st.integers(0, 100),
)
def test_replicas_are_on_as_many_racks_as_possible(
    racks: list[str], partitions: int, factor: int, start: int
) -> None:
    factor = min(factor, len(racks))
    places = [PlacementBroker(broker, rack) for broker, rack in enumerate(racks)]
    for replicas in place_partitions(places, partitions, factor, start):
        used = {racks[broker] for broker in replicas}
        assert len(used) == min(factor, len(set(racks)))


def test_brokers_of_a_large_rack_share_its_replicas() -> None:
    places = [
        PlacementBroker(1, "a"),
        PlacementBroker(2, "a"),
        PlacementBroker(3, "a"),
        PlacementBroker(4, "b"),
    ]
    assignment = place_partitions(places, 60, 2, 0)
    held = [sum(broker in replicas for replicas in assignment) for broker in (1, 2, 3, 4)]
    assert held[3] == 60
    assert max(held[:3]) - min(held[:3]) <= 2


@given(
    live=st.integers(1, 5),
    absent=st.integers(0, 5),
    partitions=st.integers(1, 30),
    factor=st.integers(1, 10),
    start=st.integers(0, 100),
)
def test_dead_brokers_come_last_and_only_if_live_ones_are_too_few(
    live: int, absent: int, partitions: int, factor: int, start: int
) -> None:
    factor = min(factor, live + absent)
    places = [PlacementBroker(broker, None) for broker in range(live)]
    down = list(range(100, 100 + absent))
    for replicas in place_partitions(places, partitions, factor, start, down):
        assert len(set(replicas)) == factor
        alive = min(factor, live)
        assert all(broker < live for broker in replicas[:alive])
        assert all(broker >= 100 for broker in replicas[alive:])


def test_placement_needs_a_live_broker() -> None:
    with pytest.raises(BrokerError) as caught:
        place_partitions([], 1, 1, 0, [1, 2])
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_an_impossible_replication_factor_is_rejected(factor: int) -> None:
    with pytest.raises(BrokerError) as caught:
        place_partitions(
            [PlacementBroker(1, None), PlacementBroker(2, None), PlacementBroker(3, None)],
            1,
            factor,
            0,
        )
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
