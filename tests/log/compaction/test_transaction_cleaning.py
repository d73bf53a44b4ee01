"""Compaction of logs with transactions, from the append to the read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.in_process.log_home import LogHome, UnsyncedDisk
from log.committed_reader import read_committed
from millstream.log.compaction.cleaner import Cleaner, CleanerOptions
from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.log import PartitionLog
from millstream.model.config import TopicConfig
from millstream.model.topic import TopicPartition
from millstream.records.batch import BatchHeader, read_header, scan
from millstream.records.builder import build_batch
from millstream.records.control import EndMarker
from millstream.records.record import Record

RETENTION_MS = 1000
COMPACTED = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=RETENTION_MS,
    index_interval_bytes=200,
)
KEYS = (b"a", b"b", b"c")


class Table:
    """A compacted log, and the table of its committed records."""

    def __init__(self, home: LogHome) -> None:
        self.home = home
        self.log: PartitionLog = home.open()
        self.cleaner = self.make_cleaner()
        #: The records of each producer's open transaction, and its next sequence.
        self.pending: dict[int, list[tuple[bytes, bytes | None]]] = {}
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        #: Every committed record, as (first offset, key, value).
        self.committed: list[tuple[int, bytes, bytes | None]] = []
        self._pending_offsets: dict[int, list[int]] = {}

    def make_cleaner(self) -> Cleaner:
        assert self.home.directory is not None

        def high_watermark(partition: TopicPartition) -> int:
            return self.log.log_end_offset

        def remove(paths: Sequence[Path], delay_ms: int) -> None:
            for path in paths:
                path.unlink()

        return Cleaner(self.home.directory, CleanerOptions(), high_watermark, remove)

    def write(self, producer_id: int, key: bytes, value: bytes | None) -> int:
        sequence = self.sequences.get(producer_id, 0)
        batch = memoryview(
            build_batch(
                [Record(0, self.home.clock.now_ms, key, value, [])],
                producer_id=producer_id,
                producer_epoch=self.epochs.get(producer_id, 0),
                base_sequence=sequence,
                is_transactional=True,
            )
        )
        offset = self.log.append_as_leader(batch, read_header(batch), 0).base_offset
        self.sequences[producer_id] = sequence + 1
        self.pending.setdefault(producer_id, []).append((key, value))
        self._pending_offsets.setdefault(producer_id, []).append(offset)
        return offset

    def end(self, producer_id: int, *, commit: bool, is_bumped: bool = False) -> None:
        epoch = self.epochs.get(producer_id, 0) + is_bumped
        batch = self.log.prepare_marker(EndMarker(commit, 0), producer_id, epoch, 1 + is_bumped)
        assert batch is not None
        self.log.append_as_leader(memoryview(batch), read_header(batch), 0)
        self.epochs[producer_id] = epoch
        if is_bumped:
            self.sequences[producer_id] = 0
        pairs = self.pending.pop(producer_id, [])
        offsets = self._pending_offsets.pop(producer_id, [])
        if commit:
            self.committed += [
                (offset, key, value) for offset, (key, value) in zip(offsets, pairs, strict=True)
            ]

    def clean(self) -> None:
        """Clean everything below the active segment."""
        self.log.roll()
        self.log.flush()
        asyncio.run(self.cleaner.run_once())
        assert self.cleaner.stats.failures == 0, self.cleaner.stats.last_error

    def reopen(self, *, clean: bool) -> None:
        self.log = self.home.reopen(clean=clean)
        self.cleaner = self.make_cleaner()

    def expected(self) -> dict[bytes, bytes]:
        """Return the table below the last stable offset."""
        end = self.log.last_stable_offset(self.log.log_end_offset)
        table = {
            key: value for offset, key, value in sorted(self.committed, key=_offset) if offset < end
        }
        return {key: value for key, value in table.items() if value is not None}

    def actual(self) -> dict[bytes, bytes]:
        table = {record.key: record.value for record in read_committed(self.log)}
        return {key: value for key, value in table.items() if key is not None and value is not None}

    def headers(self) -> list[BatchHeader]:
        data = b"".join(segment.log.path.read_bytes() for segment in self.log.segments)
        return [header for _, header in scan(data)]


def _offset(row: tuple[int, bytes, bytes | None]) -> int:
    return row[0]


@pytest.fixture
def table(new_home: Callable[..., LogHome]) -> Table:
    return Table(new_home(COMPACTED))


def test_aborted_data_is_removed_before_its_index_entry(table: Table) -> None:
    table.write(1, b"a", b"old")
    table.end(1, commit=True)
    table.write(2, b"a", b"never")
    table.end(2, commit=False)
    table.write(1, b"b", b"x")
    table.end(1, commit=True)
    aborted = [AbortedTransaction(2, 2, 3, 4)]
    assert table.log.aborted_transactions(0, 6) == aborted
    table.clean()
    assert table.actual() == {b"a": b"old", b"b": b"x"}
    assert 2 not in [header.base_offset for header in table.headers() if header.count]
    # This cleaning still saw the aborted records, so readers may have seen them too.
    assert table.log.aborted_transactions(0, 6) == aborted
    table.write(1, b"c", b"y")
    table.end(1, commit=True)
    table.clean()
    table.write(1, b"c", b"z")
    table.end(1, commit=True)
    # Of the second producer's last batch only the header is left, for its sequence.
    assert [header.count for header in table.headers() if header.base_offset == 2] == [0]
    table.reopen(clean=True)
    assert table.actual() == {b"a": b"old", b"b": b"x", b"c": b"z"}


def test_a_commit_marker_outlives_its_data_by_the_delete_retention(table: Table) -> None:
    table.write(1, b"a", b"1")
    table.end(1, commit=True, is_bumped=True)
    table.write(2, b"a", b"2")
    table.end(2, commit=True)

    def marker() -> BatchHeader | None:
        return next((one for one in table.headers() if one.base_offset == 1), None)

    for step, horizon in enumerate((None, table.home.clock.now_ms + RETENTION_MS)):
        table.clean()
        found = marker()
        assert found is not None
        assert found.delete_horizon_ms == horizon
        table.write(3, b"b", b"%d" % step)
        table.end(3, commit=True)
    table.home.clock.now_ms += RETENTION_MS
    table.clean()
    found = marker()
    assert found is not None  # nothing else holds the epoch of the first producer
    assert (found.count, found.is_control, found.producer_epoch) == (0, True, 1)


def test_an_open_transaction_is_not_cleaned_and_not_passed(table: Table) -> None:
    table.write(1, b"a", b"1")
    table.end(1, commit=True)
    table.write(2, b"a", b"undecided")
    table.log.roll()
    table.write(1, b"a", b"2")
    table.end(1, commit=True)
    table.clean()
    assert [header.base_offset for header in table.headers()] == [0, 1, 2, 3, 4]
    table.end(2, commit=False)
    table.clean()
    assert table.actual() == {b"a": b"2"}
    assert 0 not in [header.base_offset for header in table.headers() if header.count]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write"] * 6
            + ["delete"]
            + ["commit", "abort"] * 2
            + ["clean", "roll", "later"]
            + ["kill", "stop"]
        ),
        st.integers(1, 3),
        st.sampled_from(KEYS),
        st.booleans(),
    ),
    min_size=5,
    max_size=50,
)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_readers_of_committed_records_see_the_same_table_whatever_is_cleaned(
    new_home: Callable[..., LogHome], steps: list[tuple[str, int, bytes, bool]]
) -> None:
    table = Table(new_home(COMPACTED))
    for number, (kind, producer_id, key, flag) in enumerate(steps):
        match kind:
            case "write" | "delete":
                table.write(producer_id, key, None if kind == "delete" else b"%d" % number)
            case "commit" | "abort":
                table.end(producer_id, commit=kind == "commit", is_bumped=flag)
            case "clean":
                table.clean()
            case "roll":
                table.log.roll()
            case "later":
                table.home.clock.now_ms += RETENTION_MS // 2
            case "kill" | "stop":
                table.reopen(clean=kind == "stop")
        assert table.actual() == table.expected(), f"after step {number}, {kind}"
    table.home.stop(clean=False)


class Killed(BaseException):
    """Stands for the death of the process."""


class DyingDisk(UnsyncedDisk):
    """Raises from a given change of the directory on."""

    __slots__ = ("changes", "dies_at")

    def __init__(self, dies_at: int | None = None) -> None:
        self.changes = 0
        self.dies_at = dies_at

    def _change(self) -> None:
        self.changes += 1
        if self.dies_at is not None and self.changes >= self.dies_at:
            raise Killed

    def rename(self, source: Path, target: Path) -> None:
        self._change()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._change()
        super().remove(path)

    def sync_dir(self, path: Path) -> None:
        self._change()


def test_a_kill_at_any_step_of_a_cleaning_leaves_the_same_table(tmp_path: Path) -> None:
    table = Table(LogHome(tmp_path / "origin", COMPACTED))
    for number in range(6):
        for producer_id in (1, 2):
            table.write(producer_id, KEYS[number % 3], b"%d-%d" % (producer_id, number))
        table.end(1, commit=number % 2 == 0)
        table.log.roll()
        table.end(2, commit=number % 3 == 0)
    table.log.roll()
    table.log.flush()
    expected = table.expected()
    assert len(expected) == 3
    table.home.stop(clean=True)
    dies_at, died = 1, True
    while died:
        path = tmp_path / f"killed-{dies_at}"
        shutil.copytree(table.home.path, path)
        disk = DyingDisk()
        home = LogHome(path, COMPACTED, disk)
        killed = Table(home)
        before = disk.changes
        disk.dies_at = before + dies_at
        try:
            asyncio.run(killed.cleaner.run_once())
            died = False
        except Killed:
            died = True
        disk.dies_at = None
        killed.reopen(clean=False)
        assert killed.actual() == expected
        asyncio.run(killed.cleaner.run_once())
        assert killed.actual() == expected
        assert not [one for one in home.log_path.iterdir() if one.suffix in (".cleaned", ".swap")]
        home.stop(clean=True)
        dies_at += 1
    assert dies_at > 10
