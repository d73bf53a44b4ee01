from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.controller.placement import Place, place_partitions
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
    places = [Place(broker, f"rack-{broker % racks}") for broker in range(brokers)]
    assignment = place_partitions(places, partitions, factor, start)
    assert len(assignment) == partitions
    assert all(len(set(replicas)) == factor for replicas in assignment)
    leaders = [replicas[0] for replicas in assignment]
    counts = [leaders.count(broker) for broker in range(brokers)]
    assert max(counts) - min(counts) <= 1


def test_replicas_are_spread_over_racks() -> None:
    places = [Place(broker, "a" if broker < 3 else "b") for broker in range(6)]
    for replicas in place_partitions(places, 12, 2, 0):
        assert {broker < 3 for broker in replicas} == {True, False}


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_an_impossible_replication_factor_is_refused(factor: int) -> None:
    with pytest.raises(BrokerError) as caught:
        place_partitions([Place(1, None), Place(2, None), Place(3, None)], 1, factor, 0)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
