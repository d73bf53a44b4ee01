"""Positions: a fetched record is handed out, or its partition is read on at it or before it."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from millstream.client.consumer.positions import Reading
from millstream.client.record import Partition, Record, Records

P0, P1 = Partition("t", 0), Partition("t", 1)


def messages(*places: tuple[int, int]) -> list[Message]:
    return [Message(topic="t", partition=number, offset=offset) for number, offset in places]


def offsets(found: list[Message]) -> list[tuple[int | None, int | None]]:
    return [(message.partition(), message.offset()) for message in found]


def walked(reading: Reading, count: int, reached: int) -> None:
    """Hand out a batch one by one, as far as that."""
    walk = reading.walk(Records(reading.hand_out(count), Record))
    for _ in range(reached):
        next(walk)


def test_what_a_walk_has_not_reached_is_handed_out_again() -> None:
    reading = Reading("at_least_once")
    reading.accept(messages((0, 0), (0, 1), (1, 0), (0, 2)))
    walked(reading, 4, 2)
    reading.leave([P1])
    assert reading.offsets() == {P0: 2}
    assert offsets(reading.hand_out(5)) == [(0, 2)]


def test_a_walk_ends_where_it_was_recalled() -> None:
    reading = Reading("at_least_once")
    reading.accept(messages((0, 0), (0, 1), (0, 2)))
    batch = Records(reading.hand_out(3), Record)
    walk = reading.walk(batch)
    assert next(walk).offset() == 0
    reading.recall()
    assert list(walk) == []
    assert list(reading.walk(batch)) == []
    assert reading.offsets() == {P0: 1}
    assert offsets(reading.hand_out(3)) == [(0, 1), (0, 2)]


def test_a_failure_counts_a_record_or_a_batch_as_not_processed() -> None:
    reading = Reading("at_least_once")
    reading.accept(messages((0, 0), (0, 1), (0, 2)))
    walked(reading, 3, 2)
    reading.fail()
    reading.settle()
    assert reading.offsets() == {P0: 1}
    reading.hand_out(3)
    reading.fail()
    reading.settle()
    assert reading.offsets() == {P0: 1}


def test_held_records_come_back_in_order() -> None:
    reading = Reading("at_least_once")
    reading.accept(messages((0, 0), (1, 0), (0, 1)))
    reading.hold([P0])
    reading.accept(messages((0, 2)))
    assert offsets(reading.hand_out(5)) == [(1, 0)]
    reading.release([P0])
    reading.accept(messages((0, 3)))
    assert offsets(reading.hand_out(5)) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_rewind_keeps_what_was_fetched_of_other_partitions() -> None:
    """Dropping them without a move would skip them."""
    reading = Reading("exactly_once")
    reading.accept(messages((0, 0), (0, 1), (1, 0), (1, 1)))
    reading.hand_out(1)
    reading.rewind()
    assert reading.move() == (P0, 0)
    # Still from the old position.
    reading.accept(messages((0, 2), (1, 2)))
    reading.moved(P0, 0)
    reading.accept(messages((0, 0)))
    assert reading.move() is None
    assert offsets(reading.hand_out(9)) == [(1, 0), (1, 1), (1, 2), (0, 0)]


def test_a_move_is_owed_until_it_was_carried_out() -> None:
    reading = Reading("at_least_once")
    reading.accept(messages((0, 0), (1, 0)))
    reading.hold([P0])
    for partition in (P0, P1):
        reading.seek(partition, 7)
    reading.moved(P0, 5)
    assert reading.move() == (P0, 7)
    reading.moved(P0, 7)
    reading.leave([P1])
    assert reading.move() is None
    assert not reading.has_pending


def test_at_most_once_hands_out_only_what_was_committed() -> None:
    reading = Reading("at_most_once")
    reading.accept(messages((0, 0), (0, 1), (0, 2)))
    assert reading.hand_out(3) == []
    reading.committed({P0: 2})
    reading.clear(reading.peek(2))
    # Nothing of it reached anybody yet.
    assert reading.handed_out() == {P0: 0}
    assert offsets(reading.hand_out(3)) == [(0, 0), (0, 1)]
    assert reading.handed_out() == {}
    assert not reading.has_cleared
    reading.clear(reading.peek(1))
    reading.recall()
    assert reading.hand_out(1) == []


@pytest.mark.parametrize("is_committed", [False, True])
def test_partitions_that_leave_with_records_in_hand_are_named_once(is_committed: bool) -> None:
    reading = Reading("at_least_once")
    reading.accept(messages((0, 0), (1, 0)))
    reading.hand_out(2)
    if is_committed:
        reading.committed({P1: 1})
    reading.leave([P1])
    assert reading.offsets() == {P0: 1}
    assert reading.take_left() == ([] if is_committed else [P1])
    assert reading.take_left() == []


def test_what_was_handed_out_before_a_revocation_is_not_committed_after_it() -> None:
    """At most once commits before it hands out. Another member may have gone on from there."""
    reading = Reading("at_most_once")
    reading.accept(messages((0, 0), (0, 1), (0, 2)))
    reading.clear(reading.peek(3))
    reading.committed({P0: 3})
    walked(reading, 3, 1)
    assert reading.handed_out() == {P0: 1}
    reading.leave([P0])
    assert reading.handed_out() == {}
