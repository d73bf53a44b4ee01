"""Positions: a fetched record is handed out, or its partition continues at it or before it."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from millstream.client.consumer.positions import Positions
from millstream.client.record import Partition, Record, Records

P0, P1 = Partition("t", 0), Partition("t", 1)


def messages(*places: tuple[int, int]) -> list[Message]:
    return [Message(topic="t", partition=number, offset=offset) for number, offset in places]


def offsets(found: list[Message]) -> list[tuple[int | None, int | None]]:
    return [(message.partition(), message.offset()) for message in found]


def iterated(positions: Positions, count: int, reached: int) -> None:
    """Hand out the first records of a batch one by one."""
    iterator = positions.iterate(Records(positions.hand_out(count), Record))
    for _ in range(reached):
        next(iterator)


def test_records_that_an_iteration_has_not_reached_are_handed_out_again() -> None:
    positions = Positions("at_least_once")
    positions.accept(messages((0, 0), (0, 1), (1, 0), (0, 2)))
    iterated(positions, 4, 2)
    positions.revoke([P1])
    assert positions.offsets() == {P0: 2}
    assert offsets(positions.hand_out(5)) == [(0, 2)]


def test_a_recall_ends_the_iteration() -> None:
    positions = Positions("at_least_once")
    positions.accept(messages((0, 0), (0, 1), (0, 2)))
    batch = Records(positions.hand_out(3), Record)
    iterator = positions.iterate(batch)
    assert next(iterator).offset() == 0
    positions.recall()
    assert list(iterator) == []
    assert list(positions.iterate(batch)) == []
    assert positions.offsets() == {P0: 1}
    assert offsets(positions.hand_out(3)) == [(0, 1), (0, 2)]


def test_a_failure_counts_a_record_or_a_batch_as_not_processed() -> None:
    positions = Positions("at_least_once")
    positions.accept(messages((0, 0), (0, 1), (0, 2)))
    iterated(positions, 3, 2)
    positions.fail()
    positions.mark_processed()
    assert positions.offsets() == {P0: 1}
    positions.hand_out(3)
    positions.fail()
    positions.mark_processed()
    assert positions.offsets() == {P0: 1}


def test_paused_records_are_handed_out_in_order_after_resume() -> None:
    positions = Positions("at_least_once")
    positions.accept(messages((0, 0), (1, 0), (0, 1)))
    positions.pause([P0])
    positions.accept(messages((0, 2)))
    assert offsets(positions.hand_out(5)) == [(1, 0)]
    positions.resume([P0])
    positions.accept(messages((0, 3)))
    assert offsets(positions.hand_out(5)) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_rewind_keeps_what_was_fetched_of_other_partitions() -> None:
    """Dropping them without a seek would skip them."""
    positions = Positions("exactly_once")
    positions.accept(messages((0, 0), (0, 1), (1, 0), (1, 1)))
    positions.hand_out(1)
    positions.rewind()
    assert positions.next_seek() == (P0, 0)
    # These are still from the old position.
    positions.accept(messages((0, 2), (1, 2)))
    positions.seek_done(P0, 0)
    positions.accept(messages((0, 0)))
    assert positions.next_seek() is None
    assert offsets(positions.hand_out(9)) == [(1, 0), (1, 1), (1, 2), (0, 0)]


def test_a_seek_is_pending_until_it_is_done() -> None:
    positions = Positions("at_least_once")
    positions.accept(messages((0, 0), (1, 0)))
    positions.pause([P0])
    for partition in (P0, P1):
        positions.seek(partition, 7)
    positions.seek_done(P0, 5)
    assert positions.next_seek() == (P0, 7)
    positions.seek_done(P0, 7)
    positions.revoke([P1])
    assert positions.next_seek() is None
    assert not positions.has_pending


def test_at_most_once_hands_out_only_what_was_committed() -> None:
    positions = Positions("at_most_once")
    positions.accept(messages((0, 0), (0, 1), (0, 2)))
    assert positions.hand_out(3) == []
    positions.committed({P0: 2})
    positions.mark_precommitted(positions.peek(2))
    # None of these was handed out yet.
    assert positions.handed_out() == {P0: 0}
    assert offsets(positions.hand_out(3)) == [(0, 0), (0, 1)]
    assert positions.handed_out() == {}
    assert not positions.has_precommitted
    positions.mark_precommitted(positions.peek(1))
    positions.recall()
    assert positions.hand_out(1) == []


@pytest.mark.parametrize("is_committed", [False, True])
def test_partitions_revoked_with_uncommitted_records_are_returned_once(is_committed: bool) -> None:
    positions = Positions("at_least_once")
    positions.accept(messages((0, 0), (1, 0)))
    positions.hand_out(2)
    if is_committed:
        positions.committed({P1: 1})
    positions.revoke([P1])
    assert positions.offsets() == {P0: 1}
    assert positions.take_revoked() == ([] if is_committed else [P1])
    assert positions.take_revoked() == []


def test_records_handed_out_before_a_revocation_are_not_committed_after_it() -> None:
    """At most once commits before it hands out. Another member may have continued from there."""
    positions = Positions("at_most_once")
    positions.accept(messages((0, 0), (0, 1), (0, 2)))
    positions.mark_precommitted(positions.peek(3))
    positions.committed({P0: 3})
    iterated(positions, 3, 1)
    assert positions.handed_out() == {P0: 1}
    positions.revoke([P0])
    assert positions.handed_out() == {}
