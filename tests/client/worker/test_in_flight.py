from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, cast

import pytest

from millstream.client.record import Partition, Record
from millstream.client.worker.header import Origin, Output
from millstream.client.worker.in_flight import Board, Entry
from millstream.client.worker.offset_metadata import Note

HERE = Partition("t", 0)
BYTES = 1 << 30


class FakeRecord:
    def __init__(self, offset: int, key: bytes, partition: int, value: bytes) -> None:
        self.topic, self.partition, self.offset, self.raw_key = "t", partition, offset, key
        self.raw_value = value


def entry(
    offset: int,
    key: bytes | None = None,
    partition: int = 0,
    due: float = 0.0,
    value: bytes = b"",
) -> Entry:
    record = cast("Any", FakeRecord(offset, key or b"", partition, value))
    origin = Origin("t", partition, offset, None, None, 0, None)
    lane = None if key is None else (partition, key)
    return Entry(Partition("t", partition), cast("Record", record), origin, lane, due)


def opened(window: int, partitions: int = 1, *, window_bytes: int = BYTES) -> Board:
    board = Board(window, window_bytes)
    for number in range(partitions):
        board.open(Partition("t", number), 0)
    return board


def finish(board: Board, each: Entry, *, keep: bool = False) -> None:
    board.release(each, 0.0)
    board.finish(each, keep=keep)


def test_the_offset_stays_at_the_lowest_unfinished_and_the_rest_is_told() -> None:
    board = opened(10)
    entries = [entry(offset) for offset in (3, 4, 7, 8)]
    for each in entries:
        board.add(each, 0.0)
    assert [board.start() for _ in range(5)] == [*entries, None]
    for each in (entries[3], entries[1]):
        finish(board, each, keep=True)
    taken = board.take()[HERE]
    assert (taken.entries, taken.offset) == ([entries[3], entries[1]], 3)
    assert (taken.unfinished, taken.end) == ((3, 7), 9)
    assert board.take() == {}
    finish(board, entries[0])
    taken = board.take()[HERE]
    assert (taken.entries, taken.offset, taken.unfinished) == ([], 7, (7,))
    finish(board, entries[2])
    # Offsets have gaps: compaction, markers.
    assert board.take()[HERE].offset == 9
    assert len(board) == 0


def test_what_a_former_worker_finished_is_kept_until_it_is_read_past() -> None:
    board = Board(10, BYTES)
    board.open(HERE, 3, Note(end=10, unfinished=(3, 6, 8)))
    ledger = board.ledger(HERE)
    assert ledger is not None
    assert [offset for offset in range(3, 12) if ledger.is_finished(offset)] == [4, 5, 7, 9]
    taken = board.take([HERE])[HERE]
    assert (taken.offset, taken.unfinished, taken.end) == (3, (3, 6, 8), 10)
    first = entry(3)
    board.add(first, 0.0)
    ledger.read_to(4)
    taken = board.take()[HERE]
    assert (taken.offset, taken.unfinished, taken.end) == (3, (3, 6, 8), 10)
    finish(board, first)
    taken = board.take()[HERE]
    assert (taken.offset, taken.unfinished, taken.end) == (5, (6, 8), 10)


def test_more_unfinished_messages_than_a_note_holds() -> None:
    """What finished beyond the note's end is not taken: its output must wait."""
    board = opened(100_000)
    entries = [entry(offset) for offset in range(0, 40_000, 10)]
    for each in entries:
        board.add(each, 0.0)
    board.start()
    last = entries[-1]
    finish(board, last, keep=True)
    taken = board.take()[HERE]
    assert taken.entries == []
    assert taken.end < last.offset
    assert len(board) == len(entries)
    for each in entries[:-1]:
        finish(board, each)
    assert board.take()[HERE].entries == [last]


def test_a_lane_waits_for_its_first() -> None:
    board = opened(10)
    first, second, other = entry(0, b"a"), entry(1, b"a"), entry(2, b"b")
    for each in (first, second, other):
        board.add(each, 0.0)
    assert [board.start(), board.start(), board.start()] == [first, other, None]
    board.postpone(first, due=5.0, now=1.0)
    board.wake(4.9)
    assert board.start() is None
    board.wake(5.0)
    assert [board.start(), board.start()] == [first, None]
    finish(board, first)
    assert board.start() is second


def test_what_is_not_due_waits() -> None:
    board = opened(10)
    late, early = entry(0, due=9.0), entry(1, due=3.0)
    for each in (late, early):
        board.add(each, 0.0)
    assert board.start() is None
    board.wake(10.0)
    assert [board.start(), board.start()] == [early, late]


def test_a_partition_that_went_leaves_nothing_behind() -> None:
    board = opened(10, 2)
    running, queued, elsewhere = entry(0, b"a"), entry(1, b"a"), entry(0, b"a", partition=1)
    for each in (running, queued, elsewhere):
        board.add(each, 0.0)
    assert board.start() is running
    board.drop([HERE])
    board.open(HERE, 0)
    again = entry(0, b"a")
    board.add(again, 0.0)
    finish(board, running)
    assert {board.start(), board.start()} == {elsewhere, again}
    assert board.take()[HERE].offset == 0
    assert board.running.keys() == {elsewhere, again}


def test_a_held_partition_starts_nothing() -> None:
    board = opened(10)
    board.add(entry(0), 0.0)
    board.hold([Partition("t", 0)])
    assert board.start() is None


def test_full_and_roomy() -> None:
    board = opened(4)
    entries = [entry(offset) for offset in range(4)]
    for each in entries:
        board.add(each, 0.0)
    assert (board.full(), board.roomy()) == ({HERE}, set())
    for each in entries[1:3]:
        finish(board, each)
    assert (board.full(), board.roomy()) == (set(), {HERE})


def test_bytes_fill_the_window_too() -> None:
    board = opened(1000, 2, window_bytes=40_000)
    entries = [entry(offset, value=b"x" * 9_600) for offset in range(2)]
    for each in entries:
        board.add(each, 0.0)
    assert (board.full(), board.roomy()) == ({HERE}, {Partition("t", 1)})
    for each in entries:
        finish(board, each)
    assert (board.full(), board.bytes) == (set(), 0)


def test_output_that_waits_to_be_sent_counts_as_bytes() -> None:
    board = opened(1000, window_bytes=10_000)
    each = entry(0)
    board.add(each, 0.0)
    board.start()
    each.outputs = [Output("out", b"key", b"x" * 20_000, [])]
    finish(board, each, keep=True)
    assert board.full() == {HERE}
    board.take()
    assert board.bytes == 0


def test_what_waits_for_a_time_does_not_fill_the_window() -> None:
    """Nor do those of its key that wait behind it."""
    board = opened(4)
    first = entry(0, b"slow")
    board.add(first, 0.0)
    board.start()
    board.postpone(first, due=3600.0, now=0.0)
    for offset in range(1, 20):
        board.add(entry(offset, b"slow"), 0.0)
    for offset in range(20, 40):
        board.add(entry(offset, due=1000.0), 0.0)
    assert board.full() == set()
    for offset in range(40, 44):
        board.add(entry(offset, b"%d" % offset), 0.0)
    assert board.full() == {HERE}
    for _ in range(4):
        running = board.start()
        assert running is not None
        finish(board, running)
    assert board.full() == set()
    board.wake(3600.0)
    assert board.full() == {HERE}


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_keeps_the_order_of_keys_and_of_commits(seed: int) -> None:
    chance = random.Random(seed)
    board, clock, read = opened(1000), 0.0, 0
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
                board.finish(each, keep=False)
                unfinished.discard(each.offset)
        for part in board.take().values():
            taken = part.offset
            assert all(offset >= taken for offset in unfinished)
            assert part.unfinished == tuple(sorted(unfinished))
    assert all(offsets == sorted(offsets) for offsets in begun.values())
    assert sum(map(len, begun.values())) == 200
