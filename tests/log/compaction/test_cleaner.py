from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.in_process.log_home import StillClock
from millstream.env.disk import Buffer, Disk, File, SystemDisk
from millstream.env.supervisor import Supervisor
from millstream.log.compaction.cleaner import Cleaner, CleanerOptions
from millstream.log.compaction.cleaner_checkpoint import CLEANER_OFFSETS
from millstream.log.directory.checkpoint import read_offsets
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.log import PartitionLog
from millstream.log.storage import LogOptions
from millstream.model.config import TopicConfig
from millstream.model.topic import TopicPartition
from millstream.records.batch import check_batch, scan
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record, decode_records

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
PARTITION = TopicPartition("table", 0)
TOPIC_ID = bytes(range(16))
PAYLOAD_MAX = 1 << 24

KeyValue = tuple[bytes, bytes | None]


class Crash(BaseException):
    """Stands for the death of the process."""


class FaultyFile:
    def __init__(self, disk: FaultyDisk, file: File, path: Path) -> None:
        self.disk = disk
        self.file = file
        self.path = path

    def write(self, data: Buffer, position: int) -> None:
        if self.disk.is_last_step():
            self.file.write(bytes(data)[: len(data) // 2], position)
        self.disk.step()
        self.disk.unsynced.add(str(self.path))
        self.file.write(data, position)

    def truncate(self, size: int) -> None:
        self.disk.step()
        self.disk.unsynced.add(str(self.path))
        self.file.truncate(size)

    def sync(self) -> None:
        self.disk.step()
        self.disk.unsynced.discard(str(self.path))

    def pread(self, size: int, position: int) -> bytes:
        return self.file.pread(size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        return self.file.pread_into(buffer, position)

    def size(self) -> int:
        return self.file.size()

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()


class FaultyDisk(SystemDisk):
    """A disk that dies or fails at a given step, and checks that swapped files were synced.

    Does not really sync, which would take most of the time.
    """

    __slots__ = ("crash_at", "error", "steps", "unsynced")

    def __init__(self, crash_at: int | None = None) -> None:
        self.steps = 0
        self.crash_at = crash_at
        self.error: OSError | None = None
        self.unsynced: set[str] = set()

    def is_last_step(self) -> bool:
        return self.crash_at is not None and self.steps + 1 == self.crash_at

    def step(self) -> None:
        if self.error is not None:
            raise self.error
        self.steps += 1
        if self.crash_at is not None and self.steps >= self.crash_at:
            raise Crash

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        if create and not self.exists(path):
            self.step()
        return FaultyFile(self, super().open(path, create=create, readonly=readonly), path)

    def write_atomic(self, path: Path, data: Buffer) -> None:
        self.step()
        path.with_suffix(".tmp").write_bytes(data)
        path.with_suffix(".tmp").replace(path)

    def rename(self, source: Path, target: Path) -> None:
        if str(source).endswith(".cleaned"):
            assert str(source) not in self.unsynced
        self.step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self.step()


class Setup:
    """A data directory with one compacted log and its cleaner."""

    def __init__(self, path: Path, disk: Disk | None = None, **config: object) -> None:
        self.path = path
        self.disk = disk or FaultyDisk()
        self.clock = StillClock()
        self.clock.now_ms = START_MS
        settings = {"cleanup_policy": frozenset({"compact"}), "min_cleanable_dirty_ratio": 0.0}
        self.config = TopicConfig(**(settings | config))  # type: ignore[arg-type]
        self.directory = LogDirectory.open(
            path, self.disk, self.clock, random.Random(1), LogOptions()
        )
        self.log = self.add_log(PARTITION)
        self.directory.recover()
        self.high_watermark: int | None = None
        self.cleaner = self.make_cleaner()

    def add_log(self, partition: TopicPartition) -> PartitionLog:
        topic_id = TOPIC_ID[:-1] + bytes([partition.partition])
        return self.directory.log(partition, topic_id, self.config)

    def make_cleaner(self, **limits: object) -> Cleaner:
        def high_watermark(partition: TopicPartition) -> int:
            return 1 << 60 if self.high_watermark is None else self.high_watermark

        options = CleanerOptions(**limits, backoff_ms=0)  # type: ignore[arg-type]
        return Cleaner(self.directory, options, high_watermark, self.retire)

    def retire(self, paths: Sequence[Path], delay_ms: int) -> None:
        assert delay_ms == self.config.file_delete_delay_ms
        for path in paths:
            self.disk.remove(path)

    def append(
        self, pairs: Iterable[KeyValue], log: PartitionLog | None = None, **fields: object
    ) -> None:
        records = [
            Record(index, self.clock.now_ms + index, key, value, [])
            for index, (key, value) in enumerate(pairs)
        ]
        batch = build_batch(records, **fields)  # type: ignore[arg-type]
        (log or self.log).append_as_leader(memoryview(batch), check_batch(batch), 3)

    def roll(self, log: PartitionLog | None = None) -> None:
        """Roll the active segment and flush everything."""
        log = log or self.log
        log.roll()
        flush(log)

    def clean(self, rounds_max: int = 100) -> int:
        async def rounds() -> int:
            for number in range(rounds_max):
                if not await self.cleaner.run_once():
                    return number
            return rounds_max

        return asyncio.run(rounds())

    def reopen(self, disk: Disk | None = None) -> Setup:
        self.directory.close()
        again = Setup(self.path, disk)
        again.clock.now_ms = self.clock.now_ms
        return again


def flush(log: PartitionLog) -> None:
    ticket = log.begin_flush()
    if ticket is not None:
        ticket.run()
        log.finish_flush(ticket)


def read_from(log: PartitionLog, offset: int, *, is_first_enough: bool = False) -> list[Record]:
    """Return the records from `offset` on, or the first few, as a consumer reads them."""
    found: list[Record] = []
    bytes_max = 1 if is_first_enough else 1 << 12
    while offset < log.log_end_offset and not (is_first_enough and found):
        data = log.read(offset, bytes_max, log.log_end_offset, True).read()
        batches = scan(data)
        if not batches:
            break
        for position, header in batches:
            assert header.next_offset > offset
            found += [
                one for one in decode_records(data, PAYLOAD_MAX, position) if one.offset >= offset
            ]
            offset = header.next_offset
    return found


def table(records: Iterable[Record]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records]


def segment_bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_cleaning_keeps_the_last_record_of_each_key(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.append([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    setup.roll()
    setup.append([(b"b", b"4"), (b"c", b"5")], codec=CompressionType.LZ4)
    setup.roll()
    setup.append([(b"a", b"6"), (b"a", b"7")])
    assert setup.clean() == 1
    expected = [(2, b"a", b"3"), (3, b"b", b"4"), (4, b"c", b"5"), (5, b"a", b"6"), (6, b"a", b"7")]
    assert table(read_from(setup.log, 0)) == expected
    assert segment_bases(setup.log) == [0, 5]
    assert (setup.log.log_start_offset, setup.log.log_end_offset) == (0, 7)
    assert read_offsets(FaultyDisk(), tmp_path / CLEANER_OFFSETS) == {PARTITION: 5}

    again = setup.reopen()
    assert table(read_from(again.log, 0)) == expected
    assert again.clean() == 0
    again.directory.close()


def test_the_counters_describe_the_cleaning(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.append([(b"a", b"1"), (b"a", b"2"), (b"b", None)])
    setup.roll()
    setup.clean()
    stats = setup.cleaner.stats
    assert (stats.runs, stats.failures, stats.last_error) == (1, 0, None)
    assert (stats.records_read, stats.records_kept, stats.tombstones) == (3, 2, 1)
    assert stats.bytes_read > stats.bytes_written > 0
    assert stats.dirty_ratio_max == 0.0
    setup.directory.close()


def test_nothing_past_the_high_watermark_or_the_recovery_point_is_touched(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for _ in range(3):
        setup.append([(b"a", b"1"), (b"a", b"2")])
        setup.roll()
    setup.high_watermark = 3
    assert setup.clean() == 1
    assert [one.offset for one in read_from(setup.log, 0)] == [1, 2, 3, 4, 5]
    setup.high_watermark = 6
    assert setup.clean() == 1
    assert [one.offset for one in read_from(setup.log, 0)] == [5]
    setup.high_watermark = 100
    setup.append([(b"a", b"3")])
    setup.log.roll()
    assert setup.log.recovery_point < setup.log.log_end_offset
    assert setup.clean() == 0
    setup.directory.close()


def test_a_log_is_cleaned_only_above_its_dirty_ratio(tmp_path: Path) -> None:
    setup = Setup(tmp_path, min_cleanable_dirty_ratio=0.5)
    setup.append([(b"%d" % key, b"x" * 100) for key in range(20)])
    setup.roll()
    assert setup.clean() == 1
    setup.append([(b"1", b"y" * 500)])
    setup.roll()
    assert setup.clean() == 0
    assert 0.0 < setup.cleaner.stats.dirty_ratio_max < 0.5
    setup.append([(b"2", b"y" * 3000)])
    setup.roll()
    assert setup.clean() == 1
    assert len(read_from(setup.log, 0)) == 20
    setup.directory.close()


def test_the_dirtiest_log_is_cleaned_first(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    other = setup.add_log(TopicPartition("table", 1))
    for log in (setup.log, other):
        setup.append([(b"a", b"x" * 1000)], log)
        setup.roll(log)
    assert setup.clean() == 2
    setup.append([(b"a", b"x" * 10)])
    setup.roll()
    setup.append([(b"a", b"x" * 1000)], other)
    setup.roll(other)
    assert setup.clean(rounds_max=1) == 1
    assert len(read_from(setup.log, 0)) == 2
    assert len(read_from(other, 0)) == 1
    setup.directory.close()


def test_a_log_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    setup = Setup(tmp_path, cleanup_policy=frozenset({"delete"}))
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()
    assert setup.clean() == 0
    setup.log.update_config(
        TopicConfig(cleanup_policy=frozenset({"compact", "delete"}), min_cleanable_dirty_ratio=0.0)
    )
    assert setup.clean() == 1
    assert len(read_from(setup.log, 0)) == 1
    setup.directory.close()


def test_young_records_wait_for_min_compaction_lag(tmp_path: Path) -> None:
    setup = Setup(tmp_path, min_compaction_lag_ms=DAY_MS)
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()
    setup.clock.now_ms += DAY_MS
    setup.append([(b"a", b"3"), (b"a", b"4")])
    setup.roll()
    setup.clock.now_ms += 10
    assert setup.clean() == 1
    assert [one.offset for one in read_from(setup.log, 0)] == [1, 2, 3]
    setup.clock.now_ms += DAY_MS
    assert setup.clean() == 1
    assert [one.offset for one in read_from(setup.log, 0)] == [3]
    setup.directory.close()


def test_old_records_are_cleaned_however_clean_the_log_is(tmp_path: Path) -> None:
    setup = Setup(tmp_path, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=DAY_MS)
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()
    assert setup.clean() == 0
    setup.clock.now_ms += DAY_MS + 10
    assert setup.clean() == 1
    assert len(read_from(setup.log, 0)) == 1
    assert setup.clean() == 0
    setup.directory.close()


def test_deletions_go_once_delete_retention_has_passed(tmp_path: Path) -> None:
    setup = Setup(tmp_path, delete_retention_ms=DAY_MS)
    setup.append([(b"a", b"1"), (b"a", None), (b"b", b"2")])
    setup.roll()
    setup.clean()
    assert table(read_from(setup.log, 0)) == [(1, b"a", None), (2, b"b", b"2")]
    setup.clock.now_ms += DAY_MS
    setup.append([(b"c", b"3")])
    setup.roll()
    setup.clean()
    assert table(read_from(setup.log, 0)) == [(2, b"b", b"2"), (3, b"c", b"3")]
    setup.directory.close()


def test_many_small_segments_become_few(tmp_path: Path) -> None:
    setup = Setup(tmp_path, segment_bytes=2000)
    for number in range(40):
        setup.append([(b"%d" % (number % 30), b"x" * 100)])
        setup.roll()
    assert setup.clean() >= 1
    assert len(setup.log.segments) < 10
    assert all(segment.size <= 2000 for segment in setup.log.segments)
    assert sorted(one.offset for one in read_from(setup.log, 0)) == list(range(10, 40))
    setup.directory.close()


def test_a_small_map_takes_several_rounds(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.cleaner = setup.make_cleaner(dedupe_buffer_bytes=24 * 11)
    for number in range(60):
        setup.append([(b"%d" % (number % 25), b"v%d" % number)])
        if number % 20 == 19:
            setup.roll()
    assert setup.clean() > 2
    assert [one.offset for one in read_from(setup.log, 0)] == list(range(35, 60))
    setup.directory.close()


def test_a_producer_may_go_on_after_its_last_batch_was_emptied(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    fields = {"producer_id": 7, "producer_epoch": 1}
    for sequence in range(3):
        setup.append([(b"a", b"1")], base_sequence=sequence, **fields)
    setup.append([(b"a", b"2")])
    setup.roll()
    assert setup.clean() == 1
    assert table(read_from(setup.log, 0)) == [(3, b"a", b"2")]
    for path in setup.log.directory.glob("*.snapshot"):
        path.write_bytes(b"damaged: the state must come from the log")
    again = setup.reopen()
    again.append([(b"a", b"1")], base_sequence=2, **fields)
    assert again.log.log_end_offset == 4, "a retry is still recognised"
    again.append([(b"b", b"3")], base_sequence=3, **fields)
    assert again.log.log_end_offset == 5
    again.directory.close()


def test_epochs_survive_a_cleaning(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for epoch in range(3):
        batch = build_batch([Record(0, START_MS, b"a", b"1", [])])
        setup.log.append_as_leader(memoryview(batch), check_batch(batch), epoch)
        setup.roll()
    assert setup.clean() == 1
    assert [setup.log.epoch_end_offset(epoch) for epoch in range(3)] == [(0, 1), (1, 2), (2, 3)]
    again = setup.reopen()
    assert [again.log.epoch_end_offset(epoch) for epoch in range(3)] == [(0, 1), (1, 2), (2, 3)]
    assert again.log.log_start_offset == 0
    again.directory.close()


def test_a_recreated_log_is_dirty_from_its_start(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()
    assert setup.clean() == 1
    setup.directory.delete(PARTITION)
    setup.log = setup.directory.log(PARTITION, b"another topic id", setup.config)
    setup.append([(b"a", b"1"), (b"a", b"2"), (b"a", b"3")])
    setup.roll()
    assert setup.clean() == 1
    assert [one.offset for one in read_from(setup.log, 0)] == [2]
    setup.directory.delete(PARTITION)
    setup.cleaner.forget(PARTITION)
    assert setup.clean() == 0
    assert read_offsets(FaultyDisk(), tmp_path / CLEANER_OFFSETS) == {}
    setup.directory.close()


def test_a_truncated_log_is_dirty_from_there_on(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for _ in range(2):
        setup.append([(b"a", b"1"), (b"b", b"2")])
        setup.roll()
    assert setup.clean() == 1
    setup.log.truncate_to(2)
    setup.cleaner.truncated(PARTITION, 2)
    setup.append([(b"a", b"3"), (b"a", b"4"), (b"a", b"5")])
    setup.roll()
    assert setup.clean() == 1
    assert [one.offset for one in read_from(setup.log, 0)] == [4]
    setup.directory.close()


def test_a_log_without_indexes_is_cleaned_too(tmp_path: Path) -> None:
    setup = Setup(tmp_path, min_compaction_lag_ms=1000)
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()
    setup.clock.now_ms += 5000
    setup.directory.close()
    for path in setup.log.directory.glob("*index"):
        path.unlink()
    again = Setup(tmp_path, min_compaction_lag_ms=1000)
    again.clock.now_ms += 5000
    assert again.clean() == 1
    assert len(read_from(again.log, 0)) == 1
    again.directory.close()


def test_an_invalid_checkpoint_means_all_is_dirty(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()
    setup.directory.close()
    for text in ("0\n1\ntable 0 99\n", "nonsense"):
        (tmp_path / CLEANER_OFFSETS).write_text(text)
        again = Setup(tmp_path)
        assert again.clean() == 1
        assert len(read_from(again.log, 0)) == 1
        again.directory.close()


def test_a_damaged_log_is_reported_once_and_others_go_on(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    other = setup.add_log(TopicPartition("table", 1))
    for log in (setup.log, other):
        setup.append([(b"a", b"1"), (b"a", b"2" * 100)], log)
        setup.roll(log)
    path = setup.log.segments[0].log.path
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    setup.append([(b"a", b"3")])
    setup.roll()
    assert setup.clean() + setup.clean() + setup.clean() == 1
    assert len(read_from(other, 0)) == 1
    stats = setup.cleaner.stats
    assert list(stats.uncleanable) == [PARTITION]
    assert (stats.failures, stats.runs) == (1, 1)
    assert "table-0" in (stats.last_error or "")
    assert path.read_bytes() == data
    assert not list(setup.log.directory.glob("*.cleaned"))
    setup.cleaner.forget(PARTITION)
    assert not stats.uncleanable
    setup.directory.close()


def test_disk_errors_are_retried_a_few_times(tmp_path: Path) -> None:
    disk = FaultyDisk()
    setup = Setup(tmp_path, disk)
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()
    disk.error = OSError(28, "No space left on device")
    assert [setup.clean() for _ in range(2)] == [0, 0]
    assert not setup.cleaner.stats.uncleanable
    disk.error = None
    assert setup.clean() == 1
    setup.append([(b"a", b"3")])
    setup.roll()
    disk.error = OSError(28, "No space left on device")
    assert [setup.clean() for _ in range(5)] == [0] * 5
    assert list(setup.cleaner.stats.uncleanable) == [PARTITION]
    assert setup.cleaner.stats.failures == 5
    disk.error = None
    setup.directory.close()


def test_segments_that_vanish_meanwhile_make_the_result_worthless(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    for _ in range(2):
        setup.append([(b"a", b"1"), (b"b", b"2")])
        setup.roll()
    segments = setup.log.segments

    async def scenario() -> None:
        run = asyncio.create_task(setup.cleaner.run_once())
        await asyncio.sleep(0)
        setup.log.advance_start(3)
        setup.log.expire(setup.clock.now_ms, 100)
        assert len(setup.log.segments) < len(segments) or setup.log.segments[0].base_offset == 2
        assert not await run

    asyncio.run(scenario())
    assert not list(setup.log.directory.glob("*.cleaned"))
    assert [one.offset for one in read_from(setup.log, 3)] == [3]
    assert not setup.cleaner.stats.uncleanable
    setup.directory.close()


def test_stopping_cancels_a_cleaning_and_removes_its_files(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.append([(b"a", b"1" * 1000), (b"a", b"2")])
    setup.roll()
    setup.cleaner = setup.make_cleaner(io_bytes_per_second_max=1.0)

    async def scenario() -> None:
        setup.cleaner.start(Supervisor())
        for _ in range(5):
            await asyncio.sleep(0.001)
        await setup.cleaner.stop()

    asyncio.run(scenario())
    assert setup.cleaner.stats.runs == 0
    assert not list(setup.log.directory.glob("*.cleaned"))
    assert len(read_from(setup.log, 0)) == 2
    setup.directory.close()


def test_the_background_task_cleans_by_itself(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.append([(b"a", b"1"), (b"a", b"2")])
    setup.roll()

    async def scenario() -> None:
        setup.cleaner.start(Supervisor())
        async with asyncio.timeout(90):
            while not setup.cleaner.stats.runs:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await setup.cleaner.stop()

    asyncio.run(scenario())
    assert len(read_from(setup.log, 0)) == 1
    setup.directory.close()


# Against a model

_pairs = st.lists(
    st.tuples(
        st.sampled_from([b"%d" % key for key in range(8)]), st.none() | st.binary(max_size=20)
    ),
    min_size=1,
    max_size=5,
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _pairs, st.sampled_from(list(CompressionType))),
        st.tuples(st.just("append"), _pairs, st.sampled_from(list(CompressionType))),
        st.tuples(st.just("roll")),
        st.tuples(st.just("clean"), st.sampled_from([5, 11, 1000])),
        st.tuples(st.just("wait")),
        st.tuples(st.just("reopen")),
    ),
    max_size=25,
)


def check_every_offset(
    log: PartitionLog, left: Sequence[tuple[int, bytes | None, bytes | None]]
) -> None:
    """Check that a reader at any offset gets the first remaining record from there on."""
    for offset in range(log.log_start_offset, log.log_end_offset + 1):
        expected = next((one for one in left if one[0] >= offset), None)
        assert next(iter(table(read_from(log, offset, is_first_enough=True))), None) == expected


def check_against(setup: Setup, written: Sequence[tuple[int, bytes, bytes | None]]) -> None:
    """Check that the log gives the same table as all records ever written."""
    log = setup.log
    left = table(read_from(log, 0))
    assert set(left) <= set(written)
    assert [one[0] for one in left] == sorted({one[0] for one in left})
    clean_to = read_offsets(FaultyDisk(), setup.path / CLEANER_OFFSETS).get(PARTITION, 0)
    # All records that were never cleaned are present.
    assert [one for one in left if one[0] >= clean_to] == [
        one for one in written if one[0] >= clean_to
    ]
    # Of the cleaned records, only the last one of each key stays; tombstones may be gone.
    last_clean = {key: (offset, value) for offset, key, value in written if offset < clean_to}
    for offset, key, value in left:
        if offset < clean_to:
            assert key is not None
            assert last_clean[key] == (offset, value)
    kept = {offset for offset, _, _ in left}
    last_of_all = {key: (offset, value) for offset, key, value in written}
    for offset, value in last_of_all.values():
        assert value is None or offset in kept
    check_every_offset(log, left)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_steps)
def test_a_compacted_log_gives_the_same_table(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]]
) -> None:
    setup = Setup(tmp_path_factory.mktemp("model"), segment_bytes=400)
    written: list[tuple[int, bytes, bytes | None]] = []
    for step in [*steps, ("roll",), ("clean", 1000)]:
        match step:
            case ("append", pairs, codec):
                base = setup.log.log_end_offset
                written += [(base + index, *pair) for index, pair in enumerate(pairs)]
                setup.append(pairs, codec=codec)
            case ("roll",) if written:
                setup.roll()
            case ("clean", slots):
                setup.cleaner = setup.make_cleaner(dedupe_buffer_bytes=24 * slots)
                setup.clean()
            case ("wait",):
                setup.clock.now_ms += DAY_MS
            case ("reopen",):
                setup = setup.reopen()
        check_against(setup, written)
    setup.directory.close()


# Against crashes


def write_history(path: Path) -> list[tuple[int, bytes, bytes | None]]:
    """Fill a log with segments of all compression types and clean it once. Returns the records."""
    setup = Setup(path, segment_bytes=1500)
    generator = random.Random(7)
    written: list[tuple[int, bytes, bytes | None]] = []
    for number in range(40):
        pairs: list[KeyValue] = [
            (b"k%d" % generator.randrange(30), generator.choice([None, b"v" * 20, b"%d" % number]))
            for _ in range(generator.randrange(1, 5))
        ]
        base = setup.log.log_end_offset
        written += [(base + index, *pair) for index, pair in enumerate(pairs)]
        setup.append(pairs, codec=generator.choice(list(CompressionType)))
        if number == 15:
            setup.roll()
            setup.clean()
            setup.clock.now_ms += 2 * DAY_MS
    setup.roll()
    setup.append([(b"k1", b"active")])
    written.append((setup.log.log_end_offset - 1, b"k1", b"active"))
    flush(setup.log)
    setup.directory.close()
    return written


def clean_and_die(path: Path, crash_at: int | None) -> int:
    """Clean on a disk that dies at a step. Returns the number of steps."""
    disk = FaultyDisk()
    setup = Setup(path, disk, segment_bytes=1500)
    setup.clock.now_ms += 2 * DAY_MS
    assert len(setup.log.segments) > 3
    before = disk.steps
    disk.crash_at = None if crash_at is None else before + crash_at
    with contextlib.suppress(Crash):
        setup.clean()
    steps = disk.steps - before
    disk.crash_at = None
    shutil.copytree(path, f"{path}-after")
    setup.directory.close()
    return steps


def test_a_kill_at_any_step_of_a_cleaning_loses_nothing(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    written = write_history(origin)
    shutil.copytree(origin, tmp_path / "whole")
    steps = clean_and_die(tmp_path / "whole", None)
    assert steps > 20
    for crash_at in range(1, steps + 1):
        path = tmp_path / f"crash-{crash_at}"
        shutil.copytree(origin, path)
        clean_and_die(path, crash_at)
        check_after_crash(Path(f"{path}-after"), written)
        shutil.rmtree(path)
        shutil.rmtree(f"{path}-after")


def check_after_crash(path: Path, written: Sequence[tuple[int, bytes, bytes | None]]) -> None:
    setup = Setup(path, segment_bytes=1500)
    log = setup.log
    assert (log.log_start_offset, log.log_end_offset) == (0, written[-1][0] + 1)
    left = table(read_from(log, 0))
    assert set(left) <= set(written)
    kept = {offset for offset, _, _ in left}
    for offset, value in {key: (offset, value) for offset, key, value in written}.values():
        assert value is None or offset in kept
    check_every_offset(log, left)
    setup.clock.now_ms += 2 * DAY_MS
    setup.clean()
    assert not [one for one in log.directory.iterdir() if one.suffix in (".cleaned", ".swap")]
    check_against(setup, written)
    setup.directory.close()
