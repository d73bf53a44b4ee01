"""Elections: leader and ISR, for any partition and any set of live brokers."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from millstream.controller import election
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.sentinel import NO_LEADER

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
def test_an_election_has_a_valid_and_stable_result(
    record: PartitionRecord, alive: frozenset[int], unclean: bool
) -> None:
    after = election.elect(record, alive, unclean=unclean) or record
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
    assert election.elect(after, alive, unclean=unclean) is None


@given(partitions(), alive_sets)
def test_a_clean_leader_was_in_sync(record: PartitionRecord, alive: frozenset[int]) -> None:
    after = election.elect(record, alive, unclean=False) or record
    assert after.leader in {*record.isr, NO_LEADER}
    assert set(after.isr) <= set(record.isr)


@given(partitions(), alive_sets, st.booleans())
def test_the_leader_epoch_grows_exactly_when_the_leader_changes(
    record: PartitionRecord, alive: frozenset[int], unclean: bool
) -> None:
    after = election.elect(record, alive, unclean=unclean) or record
    assert after.leader_epoch == record.leader_epoch + (after.leader != record.leader)


def test_an_unclean_leader_is_elected_only_if_no_in_sync_replica_is_alive() -> None:
    record = PartitionRecord(replicas=(1, 2, 3), leader=1, leader_epoch=0, isr=(1, 3))
    with_one_in_sync = election.elect(record, {2, 3}, unclean=True)
    assert with_one_in_sync is not None
    assert with_one_in_sync.leader == 3
    without = election.elect(record, {2}, unclean=True)
    assert without is not None
    assert (without.leader, without.isr) == (2, (2,))
    waits = election.elect(record, {2}, unclean=False)
    assert waits is not None
    assert (waits.leader, waits.isr) == (NO_LEADER, (1, 3))


@given(partitions(), alive_sets, BROKERS)
def test_hand_over_leaves_an_in_sync_leader(
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
def test_a_distrusted_broker_leads_only_as_the_last_in_sync_replica(
    record: PartitionRecord, broker: int
) -> None:
    after = election.distrust(record, broker) or record
    assert after.isr
    if broker in after.isr:
        assert after.isr == (broker,)
    elected = election.elect(after, {1, 2, 3, 4, 5, 6}, unclean=False) or after
    assert elected.leader != broker or after.isr == (broker,)


@given(partitions(), alive_sets)
def test_the_preferred_replica_is_elected_if_it_is_in_sync_and_alive(
    record: PartitionRecord, alive: frozenset[int]
) -> None:
    after = election.prefer(record, alive)
    first = record.replicas[0]
    if first in record.isr and first in alive and record.leader != first:
        assert after == msgspec.structs.replace(
            record, leader=first, leader_epoch=record.leader_epoch + 1
        )
    else:
        assert after is None


@given(partitions(), alive_sets, alive_sets, st.booleans())
def test_a_leaving_broker_is_not_elected(
    record: PartitionRecord, alive: frozenset[int], leaving: frozenset[int], unclean: bool
) -> None:
    after = election.elect(record, alive, unclean=unclean, leaving=leaving) or record
    if after.leader != record.leader:
        assert after.leader not in leaving
    if not alive.isdisjoint(record.isr):
        # A leaving broker stays in the ISR, so no unclean election is necessary.
        assert after.isr == tuple(replica for replica in record.isr if replica in alive)


# Eligible leader replicas and disks


def waiting(**fields: object) -> PartitionRecord:
    """Return a record with replicas 1, 2 and 3, and without a leader."""
    names = {"isr": (1,), "elr": (2,), "directories": ((1, "a"), (2, "b"), (3, "c"))}
    return PartitionRecord(
        replicas=(1, 2, 3),
        leader=NO_LEADER,
        leader_epoch=4,
        **(names | fields),  # type: ignore[arg-type]
    )


DISKS = {1: "a", 2: "b", 3: "c"}


def test_an_eligible_replica_leads_if_no_isr_member_is_alive() -> None:
    after = election.elect(waiting(), {2, 3}, unclean=False, min_isr=2, directories=DISKS)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (2, 5, (2,), (1,))
    assert election.is_clean(waiting(), after)
    with_isr = election.elect(waiting(), {1, 2}, unclean=False, min_isr=2, directories=DISKS)
    assert with_isr is not None
    assert (with_isr.leader, with_isr.elr) == (1, (2,))


def test_an_eligible_replica_on_another_disk_does_not_lead() -> None:
    away = {**DISKS, 2: "new"}
    assert election.elect(waiting(), {2, 3}, unclean=False, min_isr=2, directories=away) is None
    lost = waiting(directories=((2, "lost"),))
    assert election.elect(lost, {2, 3}, unclean=False, min_isr=2, directories=DISKS) is None


def test_the_last_isr_member_that_lost_its_disk_leads_again_only_with_that_disk() -> None:
    record = PartitionRecord(
        replicas=(1, 2), leader=1, leader_epoch=0, isr=(1,), directories=((1, "a"),)
    )
    gone = election.lose_directory(record, 1, 1)
    assert gone is not None
    assert (gone.leader, gone.leader_epoch, gone.isr, gone.elr) == (NO_LEADER, 1, (), (1,))
    settled = election.elect(gone, {1, 2}, unclean=False, directories={1: "new", 2: "b"})
    assert settled is None
    back = election.elect(gone, {1, 2}, unclean=False, directories={1: "a", 2: "b"})
    assert back is not None
    assert (back.leader, back.isr, back.elr) == (1, (1,), ())


def test_an_unclean_election_prefers_a_replica_with_its_disk() -> None:
    gone = waiting(isr=(), elr=(1,), last_known_elr=(3,))
    after = election.elect(
        gone, {1, 2, 3}, unclean=True, min_isr=2, directories={**DISKS, 1: "new"}
    )
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (3, (3,), (), ())
    only = election.elect(gone, {1}, unclean=True, min_isr=2, directories={1: "new"})
    assert only is not None
    assert (only.leader, only.directory(1)) == (1, "new")
    assert not election.is_clean(gone, only)


def test_after_unclean_shutdowns_the_last_isr_member_leads_once_all_are_back() -> None:
    first = election.distrust(waiting(), 1, 2, "a")
    assert first is not None
    assert (first.isr, first.elr, first.last_known_elr) == ((), (2,), (1,))
    assert election.elect(first, {1, 3}, unclean=False, min_isr=2, directories=DISKS) is None
    second = election.distrust(first, 2, 2, "b")
    assert second is not None
    assert (second.isr, second.elr, second.last_known_elr) == ((), (), (1, 2))
    led = election.elect(second, {1, 2, 3}, unclean=False, min_isr=2, directories=DISKS)
    assert led is not None
    assert (led.leader, led.isr) == (1, (1,))


def test_an_unclean_shutdown_does_not_affect_another_disk() -> None:
    assert election.distrust(waiting(), 2, 2, "new") is None


def test_a_deleted_log_prevents_a_clean_election_of_other_replicas() -> None:
    gone = election.lose_log(waiting(isr=(1,), elr=(), last_known_elr=(2,)), 1, 2)
    assert gone is not None
    assert (gone.isr, gone.elr, gone.last_known_elr) == ((), (1,), (2,))
    assert election.elect(gone, {1, 2, 3}, unclean=False, min_isr=2, directories=DISKS) is None
