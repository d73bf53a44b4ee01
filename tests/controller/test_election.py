"""Elections: who may lead, who stays in sync, for any partition and any set of living brokers."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millstream.controller import election
from millstream.metadata.record import NO_LEADER, PartitionRecord

BROKERS = st.integers(1, 6)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionRecord:
    replicas = draw(st.lists(BROKERS, min_size=1, max_size=4, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    return PartitionRecord(
        replicas=tuple(replicas), leader=leader, leader_epoch=7, isr=tuple(isr), partition_epoch=3
    )


alive_sets = st.frozensets(BROKERS)


@given(partitions(), alive_sets, st.booleans())
def test_settled_partition_is_right(
    record: PartitionRecord, alive: frozenset[int], unclean: bool
) -> None:
    after = election.settle(record, alive, unclean=unclean) or record
    assert after.isr
    assert after.replicas == record.replicas
    if after.leader == NO_LEADER:
        candidates = record.replicas if unclean else record.isr
        assert not alive.intersection(candidates)
        assert after.isr == record.isr
    else:
        assert after.leader in alive
        assert after.leader in after.isr
        assert alive.issuperset(after.isr)
    assert election.settle(after, alive, unclean=unclean) is None


@given(partitions(), alive_sets)
def test_clean_leader_was_in_sync(record: PartitionRecord, alive: frozenset[int]) -> None:
    after = election.settle(record, alive, unclean=False) or record
    assert after.leader in {*record.isr, NO_LEADER}
    assert set(after.isr) <= set(record.isr)


@given(partitions(), alive_sets, st.booleans())
def test_epoch_rises_exactly_with_the_leader(
    record: PartitionRecord, alive: frozenset[int], unclean: bool
) -> None:
    after = election.settle(record, alive, unclean=unclean) or record
    assert after.leader_epoch == record.leader_epoch + (after.leader != record.leader)


def test_unclean_only_where_no_replica_in_sync_is_alive() -> None:
    record = PartitionRecord(replicas=(1, 2, 3), leader=1, leader_epoch=0, isr=(1, 3))
    with_one_in_sync = election.settle(record, {2, 3}, unclean=True)
    assert with_one_in_sync is not None
    assert with_one_in_sync.leader == 3
    without = election.settle(record, {2}, unclean=True)
    assert without is not None
    assert (without.leader, without.isr) == (2, (2,))
    waits = election.settle(record, {2}, unclean=False)
    assert waits is not None
    assert (waits.leader, waits.isr) == (NO_LEADER, (1, 3))


@given(partitions(), alive_sets, BROKERS)
def test_hand_over_leaves_a_leader_in_sync(
    record: PartitionRecord, alive: frozenset[int], broker: int
) -> None:
    after = election.hand_over(record, broker, alive)
    if after is None:
        others = alive.intersection(record.isr) - {broker}
        assert broker not in record.isr or not others
    else:
        assert broker not in after.isr
        assert after.leader != broker
        assert after.leader in {*after.isr, NO_LEADER}
        if record.leader == broker:
            assert after.leader in alive


@given(partitions(), BROKERS)
def test_distrusted_broker_can_only_lead_as_the_last(record: PartitionRecord, broker: int) -> None:
    after = election.distrust(record, broker) or record
    assert after.isr
    if broker in after.isr:
        assert after.isr == (broker,)
    elected = election.settle(after, {1, 2, 3, 4, 5, 6}, unclean=False) or after
    assert elected.leader != broker or after.isr == (broker,)


@given(partitions(), alive_sets)
def test_preferred_leader(record: PartitionRecord, alive: frozenset[int]) -> None:
    after = election.prefer(record, alive)
    first = record.replicas[0]
    if first in record.isr and first in alive and record.leader != first:
        assert after == msgspec.structs.replace(
            record, leader=first, leader_epoch=record.leader_epoch + 1
        )
    else:
        assert after is None


@given(partitions(), alive_sets, alive_sets, st.booleans())
def test_a_broker_that_leaves_is_given_nothing(
    record: PartitionRecord, alive: frozenset[int], leaving: frozenset[int], unclean: bool
) -> None:
    after = election.settle(record, alive, unclean=unclean, leaving=leaving) or record
    if after.leader != record.leader:
        assert after.leader not in leaving
    if not alive.isdisjoint(record.isr):
        # What it has, it keeps: nobody may lead uncleanly while it could be asked.
        assert after.isr == tuple(replica for replica in record.isr if replica in alive)
