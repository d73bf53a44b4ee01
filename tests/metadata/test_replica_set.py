"""ISR and ELR of a partition's record, for any sequence of changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.metadata import replica_set
from millstream.metadata.cluster_record import PartitionRecord, decode_partition, encode_partition
from millstream.model.sentinel import NO_LEADER

REPLICAS = (1, 2, 3, 4)
subsets = st.lists(st.sampled_from(REPLICAS), unique=True).map(tuple)


def record(isr: tuple[int, ...] = REPLICAS, **fields: object) -> PartitionRecord:
    return PartitionRecord(replicas=REPLICAS, leader=1, leader_epoch=3, isr=isr, **fields)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.tuples(subsets, subsets), max_size=6), st.integers(1, 4))
def test_isr_and_elr_are_disjoint_and_lose_no_replica(
    steps: list[tuple[tuple[int, ...], tuple[int, ...]]], min_isr: int
) -> None:
    now = record()
    for isr, lost in steps:
        before = {*now.isr, *now.elr, *now.last_known_elr}
        now = replica_set.with_isr(now, isr, min_isr, lost)
        lists = (*now.isr, *now.elr, *now.last_known_elr)
        assert len(set(lists)) == len(lists)
        assert set(lost).isdisjoint(now.elr)
        if len(isr) >= min_isr:
            assert now.elr == now.last_known_elr == ()
        else:
            assert set(lists) >= before


def test_a_replica_that_leaves_below_the_minimum_stays_eligible() -> None:
    two = replica_set.with_isr(record((1, 2)), (1,), 2)
    assert (two.isr, two.elr, two.last_known_elr) == ((1,), (2,), ())
    back = replica_set.with_isr(two, (1, 3), 2)
    assert (back.elr, back.last_known_elr) == ((), ())


def test_the_last_isr_member_is_first_in_the_last_known_elr() -> None:
    waiting = replica_set.with_isr(record((1,), elr=(2,)), (), 2, lost=(1,))
    assert (waiting.isr, waiting.elr, waiting.last_known_elr) == ((), (2,), (1,))
    all_unclean = replica_set.with_isr(waiting, (), 2, lost=(2,))
    assert (all_unclean.elr, all_unclean.last_known_elr) == ((), (1, 2))


def test_a_disk_is_identified_by_its_directory_id() -> None:
    known = replica_set.with_directory(record(), 1, "a")
    assert replica_set.has_disk(known, 1, {1: "a"})
    assert not replica_set.has_disk(known, 1, {1: "b"})
    assert replica_set.has_disk(known, 2, {2: "b"}), "no directory is recorded"
    lost = replica_set.with_directory(known, 1, replica_set.LOST)
    assert not replica_set.has_disk(lost, 1, {1: "a"})
    assert not replica_set.has_disk(lost, 1, {})


def test_a_leader_resigns_only_if_another_replica_can_lead() -> None:
    disks = {1: "a", 2: "b"}
    resigned = replica_set.resign(record((1, 2)), 1, disks, disks)
    assert resigned is not None
    assert (resigned.leader, resigned.leader_epoch, resigned.isr) == (NO_LEADER, 4, (2,))
    last = record((1,), elr=(2,), directories=((2, "b"),))
    eligible = replica_set.resign(last, 2, disks, disks)
    assert eligible is not None
    assert (eligible.isr, eligible.elr, eligible.last_known_elr) == ((), (2,), (1,))
    assert replica_set.resign(record((1,)), 1, disks, disks) is None
    assert replica_set.resign(last, 2, {1: "a"}, disks) is None, "it is not alive"
    assert replica_set.resign(last, 2, disks, {2: "new"}) is None, "it has another disk"


def test_records_of_an_earlier_release_are_read() -> None:
    old = decode_partition(b'{"replicas":[1,2],"leader":1,"leader_epoch":0,"isr":[1]}')
    assert (old.elr, old.last_known_elr, old.directories, old.directory(1)) == ((), (), (), "")
    new = replica_set.with_directory(old, 2, "b")
    assert decode_partition(encode_partition(new)) == new
    assert encode_partition(old) == b'{"replicas":[1,2],"leader":1,"leader_epoch":0,"isr":[1]}'
