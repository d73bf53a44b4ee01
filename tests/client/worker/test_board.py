from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, cast

import pytest

from millstream.client.record import Partition, Record
from millstream.client.worker.board import Board, Entry
from millstream.client.worker.letter import Origin


class FakeRecord:
    def __init__(self, offset: int, key: bytes, partition: int = 0) -> None:
        self.topic, self.partition, self.offset, self.raw_key = "t", partition, offset, key


def entry(offset: int, key: bytes | None = None, partition: int = 0, due: float = 0.0) -> Entry:
    record = cast("Any", FakeRecord(offset, key or b"", partition))
    origin = Origin("t", partition, offset, None, None, 0, None)
    return Entry(cast("Record", record), origin, None if key is None else (partition, key), due)


def finish(board: Board, each: Entry) -> None:
    board.release(each, 0.0)
    each.is_finished = True


def test_nothing_after_the_lowest_unfinished_is_taken() -> None:
    board = Board(10)
    entries = [entry(offset) for offset in (3, 4, 7, 8)]
    for each in entries:
        board.add(each, 0.0)
    assert [board.start() for _ in range(5)] == [*entries, None]
    for each in (entries[3], entries[1]):
        finish(board, each)
    assert board.take() == {}
    finish(board, entries[0])
    taken = board.take()[Partition("t", 0)]
    assert (taken.entries, taken.offset) == (entries[:2], 5)
    finish(board, entries[2])
    # Offsets have gaps: compaction, markers.
    assert board.take()[Partition("t", 0)].offset == 9
    assert len(board) == 0


def test_a_lane_waits_for_its_first() -> None:
    board = Board(10)
    first, second, other = entry(0, b"a"), entry(1, b"a"), entry(2, b"b")
    for each in (first, second, other):
        board.add(each, 0.0)
    assert [board.start(), board.start(), board.start()] == [first, other, None]
    board.postpone(first, due=5.0, now=1.0)
    assert (board.wake(4.9), board.start()) == (0, None)
    assert (board.wake(5.0), board.start(), board.start()) == (1, first, None)
    finish(board, first)
    assert board.start() is second


def test_what_is_not_due_waits() -> None:
    board = Board(10)
    late, early = entry(0, due=9.0), entry(1, due=3.0)
    for each in (late, early):
        board.add(each, 0.0)
    assert board.start() is None
    board.wake(10.0)
    assert [board.start(), board.start()] == [early, late]


def test_a_partition_that_went_leaves_nothing_behind() -> None:
    board = Board(10)
    running, queued, elsewhere = entry(0, b"a"), entry(1, b"a"), entry(0, b"a", partition=1)
    for each in (running, queued, elsewhere):
        board.add(each, 0.0)
    assert board.start() is running
    board.drop([Partition("t", 0)])
    again = entry(0, b"a")
    board.add(again, 0.0)
    finish(board, running)
    assert {board.start(), board.start()} == {elsewhere, again}
    assert board.take() == {}
    assert board.running == {elsewhere, again}


def test_a_held_partition_starts_nothing() -> None:
    board = Board(10)
    board.add(entry(0), 0.0)
    board.hold([Partition("t", 0)])
    assert board.start() is None


def test_full_and_roomy() -> None:
    board, here = Board(4), Partition("t", 0)
    entries = [entry(offset) for offset in range(4)]
    for each in entries:
        board.add(each, 0.0)
    assert (board.full(), board.roomy()) == ({here}, set())
    for each in entries[:2]:
        finish(board, each)
    board.take()
    assert (board.full(), board.roomy()) == (set(), {here})


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_keeps_the_order_of_keys_and_of_commits(seed: int) -> None:
    chance = random.Random(seed)
    board, clock, read = Board(1000), 0.0, 0
    unfinished: set[int] = set()
    running: list[Entry] = []
    begun = defaultdict[object, list[int]](list)
    taken = 0
    while taken < 200:
        clock += 1.0
        if read < 200 and chance.random() < 0.5:
            board.add(entry(read, b"%d" % chance.randrange(8)), clock)
            unfinished.add(read)
            read += 1
        board.wake(clock)
        if chance.random() < 0.6 and (each := board.start()) is not None:
            running.append(each)
        if running and chance.random() < 0.5:
            each = running.pop(chance.randrange(len(running)))
            if chance.random() < 0.2:
                board.postpone(each, clock + chance.randrange(20), clock)
            else:
                begun[each.lane].append(each.offset)
                board.release(each, clock)
                each.is_finished = True
                unfinished.discard(each.offset)
        for part in board.take().values():
            taken = part.offset
            assert all(offset >= taken for offset in unfinished)
    assert all(offsets == sorted(offsets) for offsets in begun.values())
    assert sum(map(len, begun.values())) == 200
