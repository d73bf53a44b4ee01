"""Reassignments: no in-sync replica is lost on the way, and every reassignment ends."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.controller import election, reassignment
from millstream.metadata.cluster_record import PartitionRecord
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER

ALL = frozenset(range(1, 7))
targets = st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=4, unique=True)


def partition(*replicas: int, isr: tuple[int, ...] = ()) -> PartitionRecord:
    return PartitionRecord(
        replicas=replicas, leader=replicas[0], leader_epoch=0, isr=isr or replicas
    )


def catch_up(record: PartitionRecord) -> PartitionRecord:
    """Return the record with all replicas in sync."""
    return msgspec.structs.replace(record, isr=record.replicas)


def test_begin_keeps_the_old_replicas_until_the_end() -> None:
    begun = reassignment.begin(partition(1, 2, 3), [1, 4], ALL)
    assert begun is not None
    assert begun.replicas == (1, 4, 2, 3)
    assert (begun.adding, begun.removing) == ((4,), (2, 3))
    assert begun.isr == (1, 2, 3)
    assert reassignment.complete(begun, ALL) is None
    done = reassignment.complete(catch_up(begun), ALL)
    assert done is not None
    assert (done.replicas, done.isr) == ((1, 4), (1, 4))
    assert not reassignment.is_in_progress(done)


def test_a_removed_leader_hands_over() -> None:
    begun = reassignment.begin(partition(1, 2), [3, 4], ALL)
    assert begun is not None
    done = reassignment.complete(catch_up(begun), ALL - {3})
    assert done is not None
    assert (done.leader, done.leader_epoch) == (4, 1)


def test_a_change_of_order_completes_at_once() -> None:
    turned = reassignment.begin(partition(1, 2), [2, 1], ALL)
    assert turned is not None
    assert turned.replicas == (2, 1)
    assert not reassignment.is_in_progress(turned)
    assert reassignment.begin(turned, [2, 1], ALL) is None


@given(targets, st.lists(targets, min_size=1, max_size=4), st.booleans())
def test_any_sequence_of_reassignments_ends_at_the_last_target(
    start: list[int], plans: list[list[int]], catches_up: bool
) -> None:
    record = partition(*start)
    for wanted in plans:
        before = set(record.isr)
        record = reassignment.begin(record, wanted, ALL) or record
        assert record.isr
        assert set(record.isr) <= before
        assert record.leader in {*record.isr, NO_LEADER}
        record = election.elect(record, ALL, unclean=False) or record
        if catches_up:
            record = catch_up(record)
            record = reassignment.complete(record, ALL) or record
    record = catch_up(record)
    record = reassignment.complete(record, ALL) or record
    assert record.replicas == tuple(plans[-1])
    assert not reassignment.is_in_progress(record)


@given(targets, targets)
def test_cancel_restores_the_replicas(start: list[int], wanted: list[int]) -> None:
    begun = reassignment.begin(partition(*start), wanted, ALL)
    if begun is None or not reassignment.is_in_progress(begun):
        return
    back = reassignment.cancel(begun)
    assert set(back.replicas) == set(start)
    assert set(back.isr) == set(start)
    assert back.leader in back.isr


def test_cancel_never_removes_the_last_in_sync_replica() -> None:
    begun = reassignment.begin(partition(1), [2], ALL)
    assert begun is not None
    only_new = msgspec.structs.replace(begun, isr=(2,), leader=2)
    with pytest.raises(BrokerError) as caught:
        reassignment.cancel(only_new)
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("wanted", [[], [1, 1], [-1], [9]])
def test_invalid_targets_are_rejected(wanted: list[int]) -> None:
    with pytest.raises(BrokerError) as caught:
        reassignment.begin(partition(1, 2), wanted, ALL)
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_reassignment_is_not_completed_while_no_remaining_replica_can_lead() -> None:
    record = PartitionRecord(
        replicas=(4, 1), leader=1, leader_epoch=2, isr=(1, 4), adding=(4,), removing=(1,)
    )
    assert reassignment.complete(record, {1}) is None
    done = reassignment.complete(record, {1, 4})
    assert done is not None
    assert (done.leader, done.replicas) == (4, (4,))
