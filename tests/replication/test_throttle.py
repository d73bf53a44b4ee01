from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.metadata.cluster_record import PartitionRecord
from millstream.replication.throttle import UNLIMITED, ReplicaLimit, Throttle


@given(
    st.integers(1, 1000), st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 2)), max_size=40)
)
def test_no_more_passes_than_the_rate_and_one_portion(
    rate: int, pieces: list[tuple[int, float]]
) -> None:
    throttle = Throttle(rate)
    now, passed, largest = 0.0, 0, 0
    for size, seconds in pieces:
        now += seconds
        if not throttle.is_exceeded(now):
            throttle.add(size, now)
            passed += size
            largest = max(largest, size)
        # The allowance of one second may accumulate, and one portion may exceed the rest.
        assert passed <= rate * (now + 1) + largest + 1e-6


def test_an_exceeded_throttle_recovers_with_time() -> None:
    throttle = Throttle(100)
    throttle.add(300, 0.0)
    assert throttle.is_exceeded(0.0)
    assert throttle.wait_s(0.0) == 2.0
    assert not throttle.is_exceeded(2.1)
    assert throttle.wait_s(2.1) == 0.0


def test_without_a_rate_nothing_is_throttled() -> None:
    throttle = Throttle()
    throttle.add(1 << 60, 0.0)
    assert not throttle.is_exceeded(0.0)


def test_throttled_replicas_of_a_topic() -> None:
    assert not Throttle.covers((), 0, 1)
    assert Throttle.covers(("*",), 0, 1)
    assert Throttle.covers(("0:1", "1:2"), 1, 2)
    assert not Throttle.covers(("0:1", "1:2"), 1, 1)


def test_only_replicas_that_catch_up_are_throttled_each_by_its_own_rate() -> None:
    record = PartitionRecord(
        replicas=(1, 2, 3), leader=1, leader_epoch=0, isr=(1,), adding=(2,), removing=()
    )
    limit = ReplicaLimit(1000, 500)

    def rates(broker_id: int, named: tuple[str, ...] = ()) -> list[int]:
        found = limit.of(record, named, 0, broker_id, own=broker_id)
        return [each.bytes_per_second for each in found]

    assert rates(1, ("*",)) == []
    assert rates(2) == [500]
    assert rates(2, ("*",)) == [1000, 500]
    assert rates(3) == []
    assert rates(3, ("0:3",)) == [1000]
    assert limit.of(record, ("0:3",), 0, 3, own=1) == []
    assert [each.bytes_per_second for each in limit.of(record, ("0:1",), 0, 3, own=1)] == [1000]
    limit.set_rates(UNLIMITED, UNLIMITED)
    assert rates(2, ("*",)) == []
