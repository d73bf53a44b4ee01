"""Which messages of a worker may start, and which offsets it may commit, without brokers."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, cast

import pytest

from millstream.client.record import Partition, Record
from millstream.client.worker.message.header import Origin, OutputRecord
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.queue.in_flight import InFlight
from millstream.client.worker.queue.offset_metadata import OffsetMetadata

HERE = Partition("t", 0)
BYTES = 1 << 30


class FakeRecord:
    def __init__(self, offset: int, key: bytes, partition: int, value: bytes) -> None:
        self.topic, self.partition, self.offset, self.raw_key = "t", partition, offset, key
        self.raw_value = value


def item(
    offset: int,
    key: bytes | None = None,
    partition: int = 0,
    due: float = 0.0,
    value: bytes = b"",
) -> WorkItem:
    record = cast("Any", FakeRecord(offset, key or b"", partition, value))
    origin = Origin("t", partition, offset, None, None, 0, None)
    queue_key = None if key is None else (partition, key)
    return WorkItem(Partition("t", partition), cast("Record", record), origin, queue_key, due)


def opened(window: int, partitions: int = 1, *, window_bytes: int = BYTES) -> InFlight:
    in_flight = InFlight(window, window_bytes)
    for number in range(partitions):
        in_flight.open(Partition("t", number), 0)
    return in_flight


def finish(in_flight: InFlight, each: WorkItem, *, keep: bool = False) -> None:
    in_flight.release(each, 0.0)
    in_flight.finish(each, keep=keep)


def test_the_offset_stays_at_the_lowest_unfinished_message() -> None:
    in_flight = opened(10)
    items = [item(offset) for offset in (3, 4, 7, 8)]
    for each in items:
        in_flight.add(each, 0.0)
    assert [in_flight.start() for _ in range(5)] == [*items, None]
    for each in (items[3], items[1]):
        finish(in_flight, each, keep=True)
    progress = in_flight.take_progress()[HERE]
    assert (progress.items, progress.offset) == ([items[3], items[1]], 3)
    assert (progress.unfinished, progress.end) == ((3, 7), 9)
    assert in_flight.take_progress() == {}
    finish(in_flight, items[0])
    progress = in_flight.take_progress()[HERE]
    assert (progress.items, progress.offset, progress.unfinished) == ([], 7, (7,))
    finish(in_flight, items[2])
    # Offsets have gaps, because of compaction and markers.
    assert in_flight.take_progress()[HERE].offset == 9
    assert len(in_flight) == 0


def test_messages_that_the_previous_worker_finished_stay_finished() -> None:
    in_flight = InFlight(10, BYTES)
    in_flight.open(HERE, 3, OffsetMetadata(end=10, unfinished=(3, 6, 8)))
    window = in_flight.window(HERE)
    assert window is not None
    assert [offset for offset in range(3, 12) if window.was_finished(offset)] == [4, 5, 7, 9]
    progress = in_flight.take_progress([HERE])[HERE]
    assert (progress.offset, progress.unfinished, progress.end) == (3, (3, 6, 8), 10)
    first = item(3)
    in_flight.add(first, 0.0)
    window.advance(4)
    progress = in_flight.take_progress()[HERE]
    assert (progress.offset, progress.unfinished, progress.end) == (3, (3, 6, 8), 10)
    finish(in_flight, first)
    progress = in_flight.take_progress()[HERE]
    assert (progress.offset, progress.unfinished, progress.end) == (5, (6, 8), 10)


def test_finished_items_beyond_what_the_metadata_holds_wait() -> None:
    """An item that finished beyond the metadata's end is not returned: its output must wait."""
    in_flight = opened(100_000)
    items = [item(offset) for offset in range(0, 40_000, 10)]
    for each in items:
        in_flight.add(each, 0.0)
    in_flight.start()
    last = items[-1]
    finish(in_flight, last, keep=True)
    progress = in_flight.take_progress()[HERE]
    assert progress.items == []
    assert progress.end < last.offset
    assert len(in_flight) == len(items)
    for each in items[:-1]:
        finish(in_flight, each)
    assert in_flight.take_progress()[HERE].items == [last]


def test_a_key_queue_waits_for_its_first_item() -> None:
    in_flight = opened(10)
    first, second, other = item(0, b"a"), item(1, b"a"), item(2, b"b")
    for each in (first, second, other):
        in_flight.add(each, 0.0)
    assert [in_flight.start(), in_flight.start(), in_flight.start()] == [first, other, None]
    in_flight.postpone(first, due=5.0, now=1.0)
    in_flight.promote_due(4.9)
    assert in_flight.start() is None
    in_flight.promote_due(5.0)
    assert [in_flight.start(), in_flight.start()] == [first, None]
    finish(in_flight, first)
    assert in_flight.start() is second


def test_items_that_are_not_due_wait() -> None:
    in_flight = opened(10)
    late, early = item(0, due=9.0), item(1, due=3.0)
    for each in (late, early):
        in_flight.add(each, 0.0)
    assert in_flight.start() is None
    in_flight.promote_due(10.0)
    assert [in_flight.start(), in_flight.start()] == [early, late]


def test_a_dropped_partition_leaves_no_items() -> None:
    in_flight = opened(10, 2)
    running, queued, elsewhere = item(0, b"a"), item(1, b"a"), item(0, b"a", partition=1)
    for each in (running, queued, elsewhere):
        in_flight.add(each, 0.0)
    assert in_flight.start() is running
    in_flight.drop([HERE])
    in_flight.open(HERE, 0)
    again = item(0, b"a")
    in_flight.add(again, 0.0)
    finish(in_flight, running)
    assert {in_flight.start(), in_flight.start()} == {elsewhere, again}
    assert in_flight.take_progress()[HERE].offset == 0
    assert in_flight.running.keys() == {elsewhere, again}


def test_a_stopped_partition_starts_no_items() -> None:
    in_flight = opened(10)
    in_flight.add(item(0), 0.0)
    in_flight.stop_partitions([Partition("t", 0)])
    assert in_flight.start() is None


def test_full_and_resumable_partitions() -> None:
    in_flight = opened(4)
    items = [item(offset) for offset in range(4)]
    for each in items:
        in_flight.add(each, 0.0)
    assert (in_flight.full_partitions(), in_flight.resumable_partitions()) == ({HERE}, set())
    for each in items[1:3]:
        finish(in_flight, each)
    assert (in_flight.full_partitions(), in_flight.resumable_partitions()) == (set(), {HERE})


def test_bytes_fill_the_window_too() -> None:
    in_flight = opened(1000, 2, window_bytes=40_000)
    items = [item(offset, value=b"x" * 9_600) for offset in range(2)]
    for each in items:
        in_flight.add(each, 0.0)
    assert (in_flight.full_partitions(), in_flight.resumable_partitions()) == (
        {HERE},
        {Partition("t", 1)},
    )
    for each in items:
        finish(in_flight, each)
    assert (in_flight.full_partitions(), in_flight.bytes) == (set(), 0)


def test_output_that_waits_to_be_sent_counts_as_bytes() -> None:
    in_flight = opened(1000, window_bytes=10_000)
    each = item(0)
    in_flight.add(each, 0.0)
    in_flight.start()
    each.outputs = [OutputRecord("out", b"key", b"x" * 20_000, [])]
    finish(in_flight, each, keep=True)
    assert in_flight.full_partitions() == {HERE}
    in_flight.take_progress()
    assert in_flight.bytes == 0


def test_items_that_are_not_due_do_not_fill_the_window() -> None:
    """Items of the same key that wait behind them do not fill it either."""
    in_flight = opened(4)
    first = item(0, b"slow")
    in_flight.add(first, 0.0)
    in_flight.start()
    in_flight.postpone(first, due=3600.0, now=0.0)
    for offset in range(1, 20):
        in_flight.add(item(offset, b"slow"), 0.0)
    for offset in range(20, 40):
        in_flight.add(item(offset, due=1000.0), 0.0)
    assert in_flight.full_partitions() == set()
    for offset in range(40, 44):
        in_flight.add(item(offset, b"%d" % offset), 0.0)
    assert in_flight.full_partitions() == {HERE}
    for _ in range(4):
        running = in_flight.start()
        assert running is not None
        finish(in_flight, running)
    assert in_flight.full_partitions() == set()
    in_flight.promote_due(3600.0)
    assert in_flight.full_partitions() == {HERE}


@pytest.mark.parametrize("seed", range(20))
def test_any_interleaving_keeps_the_order_of_keys_and_of_commits(seed: int) -> None:
    chance = random.Random(seed)
    in_flight, clock, read = opened(1000), 0.0, 0
    unfinished: set[int] = set()
    running: list[WorkItem] = []
    begun = defaultdict[object, list[int]](list)
    committed = 0
    while committed < 200:
        clock += 1.0
        if read < 200 and chance.random() < 0.5:
            in_flight.add(item(read, b"%d" % chance.randrange(8)), clock)
            unfinished.add(read)
            read += 1
        in_flight.promote_due(clock)
        if chance.random() < 0.6 and (each := in_flight.start()) is not None:
            running.append(each)
        if running and chance.random() < 0.5:
            each = running.pop(chance.randrange(len(running)))
            if chance.random() < 0.2:
                in_flight.postpone(each, clock + chance.randrange(20), clock)
            else:
                begun[each.queue_key].append(each.offset)
                in_flight.release(each, clock)
                in_flight.finish(each, keep=False)
                unfinished.discard(each.offset)
        for part in in_flight.take_progress().values():
            committed = part.offset
            assert all(offset >= committed for offset in unfinished)
            assert part.unfinished == tuple(sorted(unfinished))
    assert all(offsets == sorted(offsets) for offsets in begun.values())
    assert sum(map(len, begun.values())) == 200
