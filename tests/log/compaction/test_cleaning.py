from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.env.clock import SystemClock
from millstream.env.disk import SystemDisk
from millstream.log.compaction.batch_compaction import CompactionRules
from millstream.log.compaction.cleaning import (
    Cleaning,
    CleaningLimits,
    CleaningPlan,
    SourceSegment,
)
from millstream.log.compaction.cleaning_thread import (
    CleaningCancelledError,
    CleaningThrottle,
    IoLimit,
)
from millstream.records.batch import CorruptBatch, read_header, scan
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record, decode_records

NOW_MS = 1_700_000_000_000
DISK = SystemDisk()

Batch = list[tuple[bytes, bytes | None]]


def write_segments(
    directory: Path,
    segments: Sequence[Sequence[Batch]],
    codec: CompressionType = CompressionType.NONE,
) -> list[SourceSegment]:
    """Write segment files without indexes, with consecutive offsets from 0."""
    offset, sources = 0, []
    for batches in segments:
        base_offset, data = offset, bytearray()
        for pairs in batches:
            records = [
                Record(offset + index, NOW_MS + offset + index, key, value, [])
                for index, (key, value) in enumerate(pairs)
            ]
            data += build_batch(records, base_offset=offset, codec=codec)
            offset += len(pairs)
        path = directory / f"{base_offset:020d}.log"
        path.write_bytes(data)
        sources.append(SourceSegment(base_offset, offset, len(data), path))
    return sources


def make_cleaning(
    sources: Sequence[SourceSegment],
    *,
    first_dirty: int = 0,
    segment_bytes: int = 1 << 20,
    limits: CleaningLimits | None = None,
    throttle: CleaningThrottle | None = None,
) -> Cleaning:
    plan = CleaningPlan(
        directory=sources[0].path.parent,
        segments=sources,
        first_dirty_offset=first_dirty,
        rules=CompactionRules(
            now_ms=NOW_MS,
            delete_retention_ms=1000,
            round_end_offset=sources[-1].next_base_offset,
            payload_bytes_max=1 << 20,
        ),
        segment_bytes=segment_bytes,
        segment_index_bytes=1 << 20,
        index_interval_bytes=100,
    )
    return Cleaning(
        plan, DISK, limits or CleaningLimits(), throttle or CleaningThrottle(IoLimit(SystemClock()))
    )


def offsets_in(path: Path) -> list[int]:
    data = path.read_bytes()
    return [
        record.offset
        for position, _ in scan(data)
        for record in decode_records(data, 1 << 20, position)
    ]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix == ".cleaned")


def test_a_group_becomes_one_segment_with_its_indexes(tmp_path: Path) -> None:
    sources = write_segments(
        tmp_path,
        [[[(b"a", b"1"), (b"b", b"2")]], [[(b"a", b"3")], [(b"c", b"4" * 90)], [(b"d", b"5")]]],
    )
    cleaning = make_cleaning(sources)
    cleaning.build_map()
    (group,) = cleaning.groups()
    cleaned = cleaning.rewrite(group)
    assert offsets_in(cleaned.path) == [1, 2, 3, 4]
    assert names(tmp_path) == [
        "00000000000000000000.index.cleaned",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.timeindex.cleaned",
    ]
    index = (tmp_path / "00000000000000000000.index.cleaned").read_bytes()
    assert len(index) % 8 == 0
    for entry in range(0, len(index), 8):
        last_offset = int.from_bytes(index[entry : entry + 4], "big")
        position = int.from_bytes(index[entry + 4 : entry + 8], "big")
        assert read_header(cleaned.path.read_bytes(), position).last_offset == last_offset
    times = (tmp_path / "00000000000000000000.timeindex.cleaned").read_bytes()
    assert times[-12:] == (NOW_MS + 4).to_bytes(8, "big") + (4).to_bytes(4, "big")
    assert cleaned.is_changed
    assert (cleaned.counts.records_read, cleaned.counts.records_kept) == (5, 4)
    cleaning.discard()
    assert names(tmp_path) == []


def test_a_segment_that_loses_no_record_is_not_replaced(tmp_path: Path) -> None:
    cleaning = make_cleaning(write_segments(tmp_path, [[[(b"a", b"1")], [(b"b", b"2")]]]))
    cleaning.build_map()
    assert not cleaning.rewrite(cleaning.groups()[0]).is_changed


def test_groups_hold_what_fits_into_a_segment(tmp_path: Path) -> None:
    sources = write_segments(tmp_path, [[[(b"%d" % number, b"x" * 100)]] for number in range(6)])
    size = sources[0].size_bytes
    cleaning = make_cleaning(sources, segment_bytes=2 * size + 1)
    cleaning.build_map()
    assert [len(group) for group in cleaning.groups()] == [2, 2, 2]
    far = sources[-1]._replace(next_base_offset=2**31 + 10)
    cleaning = make_cleaning([*sources[:5], far])
    cleaning.build_map()
    assert [len(group) for group in cleaning.groups()] == [5, 1]


def test_a_full_map_ends_the_round_early_and_the_next_round_continues(tmp_path: Path) -> None:
    keys = [b"%d" % (number % 7) for number in range(20)]
    sources = write_segments(tmp_path, [[[(key, b"v")] for key in keys]])
    limits = CleaningLimits(dedupe_buffer_bytes=24 * 5)
    first_dirty, rounds = 0, 0
    while first_dirty < 20:
        cleaning = make_cleaning(sources, first_dirty=first_dirty, limits=limits)
        cleaning.build_map()
        assert cleaning.known.end_offset > first_dirty
        first_dirty = cleaning.known.end_offset
        cleaned = cleaning.rewrite(cleaning.groups()[0])
        cleaned.path.rename(sources[0].path)
        sources = [sources[0]._replace(size_bytes=cleaned.bytes_written)]
        rounds += 1
    assert rounds > 1
    assert offsets_in(sources[0].path) == list(range(13, 20))


@pytest.mark.parametrize("io_buffer_bytes", [1, 100, 1000])
def test_batches_larger_than_the_buffer_are_read_whole(
    tmp_path: Path, io_buffer_bytes: int
) -> None:
    sources = write_segments(
        tmp_path, [[[(b"a", b"x" * 5000)], [(b"b", b"y")], [(b"c", b"z" * 300)]]]
    )
    cleaning = make_cleaning(sources, limits=CleaningLimits(io_buffer_bytes=io_buffer_bytes))
    cleaning.build_map()
    assert offsets_in(cleaning.rewrite(cleaning.groups()[0]).path) == [0, 1, 2]


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_a_truncated_segment_is_rejected(tmp_path: Path, cut: int) -> None:
    (source,) = write_segments(tmp_path, [[[(b"a", b"1" * 20)], [(b"a", b"2" * 20)]]])
    path, size = source.path, source.size_bytes
    path.write_bytes(path.read_bytes()[:-cut])
    for size_bytes in (size, size - cut):
        cleaning = make_cleaning([source._replace(size_bytes=size_bytes)])
        with pytest.raises(CorruptBatch):
            cleaning.build_map()


def test_a_cancelled_cleaning_stops_and_leaves_nothing(tmp_path: Path) -> None:
    throttle = CleaningThrottle(IoLimit(SystemClock()))
    cleaning = make_cleaning(write_segments(tmp_path, [[[(b"a", b"1")]]]), throttle=throttle)
    cleaning.build_map()
    throttle.cancel()
    with pytest.raises(CleaningCancelledError):
        cleaning.rewrite(cleaning.groups()[0])
    cleaning.discard()
    assert names(tmp_path) == []


def test_cleaning_keeps_to_its_bytes_per_second() -> None:
    class Clock(SystemClock):
        now = 5.0

        def monotonic(self) -> float:  # type: ignore[override]
            return self.now

    clock = Clock()
    limit = IoLimit(clock, 1_000_000)
    waits: list[float] = []

    class Condition(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            clock.now += timeout
            return False

    limit._changed = Condition()
    # Two cleanings share the limit.
    CleaningThrottle(limit).moved(1000)
    clock.now -= 0.001
    CleaningThrottle(limit).moved(2000)
    assert waits == pytest.approx([0.001, 0.003])


@pytest.mark.parametrize("end", ["cancel", "new rate"])
def test_a_cleaning_that_waits_for_its_bytes_per_second_can_be_ended(end: str) -> None:
    limit = IoLimit(SystemClock(), 0.001)
    throttle = CleaningThrottle(limit)
    begun, results = threading.Event(), queue.SimpleQueue[str]()

    def work() -> None:
        begun.set()
        try:
            throttle.moved(1000)
        except CleaningCancelledError:
            results.put("cancel")
        else:
            results.put("new rate")

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    if end == "cancel":
        throttle.cancel()
    else:
        limit.set_rate(1e9)
    assert results.get(timeout=60) == end
    thread.join()
