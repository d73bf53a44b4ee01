"""Recovery after a kill, a torn tail, flipped bits and lost files."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.in_process.log_home import (
    LogHome,
    UnsyncedDisk,
    append,
    make_batch,
    read_batches,
    read_values,
)
from millstream.env.disk import File
from millstream.log.directory.data_directory import CLEAN_MARKER
from millstream.log.log import PartitionLog
from millstream.model.config import TopicConfig
from millstream.records.batch import read_header

NewHome = Callable[..., LogHome]


def _fill(home: LogHome, count: int = 12) -> list[bytes]:
    """Append batches with producers and epochs, then kill. Returns the stored batches."""
    log = home.open()
    for number in range(count):
        append(log, make_batch(number % 3 + 1, b"%d" % number * 5), epoch=number // 5)
    batches = read_batches(log)
    home.stop(clean=False)
    return batches


def _copy(home: LogHome, new_home: NewHome) -> LogHome:
    copy = new_home(home.config)
    shutil.copytree(home.path, copy.path)
    return copy


def _last_log(home: LogHome) -> Path:
    return max(home.log_path.glob("*.log"))


def _tail_bytes(batches: list[bytes], count: int) -> int:
    return sum(map(len, batches[-count:]))


def test_truncation_at_every_byte_of_the_last_batches(new_home: NewHome) -> None:
    home = new_home(TopicConfig(index_interval_bytes=100))
    batches = _fill(home)
    path = _last_log(home)
    data = path.read_bytes()
    assert data == b"".join(batches)
    for cut in range(1, _tail_bytes(batches, 2) + 1):
        copy = _copy(home, new_home)
        _last_log(copy).write_bytes(data[:-cut])
        log = copy.open()
        kept: list[bytes] = []
        for batch in batches:
            if len(b"".join(kept)) + len(batch) > len(data) - cut:
                break
            kept.append(batch)
        assert read_batches(log) == kept
        # The log continues where it was truncated, and survives the next kill.
        append(log, make_batch(1, b"next"), epoch=7)
        log = copy.reopen(clean=cut % 2 == 0)
        assert read_batches(log)[:-1] == kept
        assert read_values(log)[-1][1] == b"next"
        copy.stop(clean=False)
        shutil.rmtree(copy.path)


def test_bits_flipped_anywhere_in_the_tail(new_home: NewHome) -> None:
    home = new_home(TopicConfig(index_interval_bytes=100))
    batches = _fill(home)
    data = _last_log(home).read_bytes()
    chance = random.Random(3)
    tail = _tail_bytes(batches, 2)
    for position in range(len(data) - tail, len(data)):
        copy = _copy(home, new_home)
        damaged = bytearray(data)
        damaged[position] ^= 1 << chance.randrange(8)
        _last_log(copy).write_bytes(damaged)
        kept = read_batches(copy.open())
        start = 0
        number = 0
        while start + len(batches[number]) <= position:
            start += len(batches[number])
            number += 1
        if 12 <= position - start < 16:
            # No checksum covers the leader epoch, so a later epoch is accepted.
            assert kept[:number] == batches[:number]
        else:
            assert kept == batches[:number]
        copy.stop(clean=False)
        shutil.rmtree(copy.path)


def test_garbage_after_the_last_batch_is_truncated(new_home: NewHome) -> None:
    home = new_home()
    batches = _fill(home)
    for garbage in (b"\0", b"\0" * 5000, b"\xff" * 100, batches[0], batches[-1][:70]):
        copy = _copy(home, new_home)
        with _last_log(copy).open("ab") as file:
            file.write(garbage)
        assert read_batches(copy.open()) == batches
        copy.stop(clean=False)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffixes", [(".index", ".timeindex"), (".index",), (".timeindex",)])
def test_lost_indexes_are_rebuilt(home: LogHome, clean: bool, suffixes: tuple[str, ...]) -> None:
    log = home.open()
    for number in range(60):
        append(log, make_batch(2, b"v" * 50, 1_700_000_000_000 + number))
    batches = read_batches(log)
    sizes = {path: path.stat().st_size for path in _indexes(home, suffixes)}
    home.stop(clean=clean)
    for path in _indexes(home, suffixes):
        path.unlink()
    log = home.open()
    assert read_batches(log) == batches
    found = log.find_by_timestamp(1_700_000_000_030)
    assert found is not None
    assert found.offset == 60
    for segment in log.segments[:-1]:
        assert len(segment.offset_index) > 0
    append(log)
    assert {path: path.stat().st_size for path in sizes if path.exists()}


def _indexes(home: LogHome, suffixes: tuple[str, ...]) -> list[Path]:
    return [path for path in home.log_path.iterdir() if path.suffix in suffixes]


@pytest.mark.parametrize("clean", [True, False])
def test_garbage_in_indexes_is_noticed(new_home: NewHome, clean: bool) -> None:
    home = new_home()
    log = home.open()
    for _ in range(60):
        append(log, make_batch(2, b"v" * 50))
    batches = read_batches(log)
    home.stop(clean=clean)
    chance = random.Random(5)
    for seed in range(20):
        copy = _copy(home, new_home)
        for path in _indexes(copy, (".index", ".timeindex")):
            data = bytearray(path.read_bytes())
            for _ in range(3):
                if data:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data + b"x" * (seed % 3))
        log = copy.open()
        for offset in range(0, log.log_end_offset, 7):
            data = log.read(offset, 300, log.log_end_offset, at_least_one=True).read()
            assert data.startswith(next(b for b in batches if read_header(b).last_offset >= offset))
        copy.stop(clean=False)
        shutil.rmtree(copy.path)


def test_segments_behind_damage_are_deleted(home: LogHome) -> None:
    batches = _fill(home, 80)
    first, second, *later = sorted(home.log_path.glob("*.log"))
    assert len(later) > 1
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    log = home.open()
    kept = read_batches(log)
    assert kept == batches[: len(kept)]
    assert len(first.read_bytes()) < len(b"".join(kept)) < len(first.read_bytes()) + len(data)
    assert not any(path.exists() for path in later)


def test_a_lost_segment_ends_the_log(home: LogHome) -> None:
    batches = _fill(home, 40)
    paths = sorted(home.log_path.glob("*.log"))
    size = paths[0].stat().st_size
    paths[1].unlink()
    assert b"".join(read_batches(home.open())) == b"".join(batches)[:size]


class CountingDisk(UnsyncedDisk):
    """Counts the bytes read from `.log` files."""

    __slots__ = ("log_bytes_read",)

    def __init__(self) -> None:
        self.log_bytes_read = 0

    def open(self, path, *, create=False, readonly=False):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create, readonly=readonly)
        return CountingFile(self, file) if path.suffix == ".log" else file


class CountingFile:
    def __init__(self, disk: CountingDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, size: int, position: int) -> bytes:
        data = self._file.pread(size, position)
        self._disk.log_bytes_read += len(data)
        return data


def test_only_what_follows_the_recovery_point_is_read(new_home: NewHome) -> None:
    disk = CountingDisk()
    home = new_home(TopicConfig(segment_bytes=10_000_000, index_interval_bytes=1000), disk)
    log = home.open()
    for _ in range(500):
        append(log, make_batch(1, b"v" * 4000))
    # A flush writes the index only from some number of entries on, which is not reached here.
    log.segments[-1].write_indexes()
    log.flush()
    assert home.directory is not None
    home.directory.checkpoint()
    for _ in range(5):
        append(log, make_batch(1, b"v" * 4000))
    home.stop(clean=False)
    disk.log_bytes_read = 0
    log = home.open()
    assert log.log_end_offset == 505
    assert log.recovery_point == 500
    assert disk.log_bytes_read < 40_000


def test_a_clean_stop_leaves_nothing_to_read(new_home: NewHome) -> None:
    disk = CountingDisk()
    home = new_home(disk=disk)
    log = home.open()
    for _ in range(50):
        append(log)
    home.stop(clean=True)
    assert (home.path / CLEAN_MARKER).exists()
    disk.log_bytes_read = 0
    log = home.open()
    assert not (home.path / CLEAN_MARKER).exists()
    assert log.log_end_offset == 50
    assert disk.log_bytes_read == 0


def test_files_changed_after_a_clean_stop_are_recovered(home: LogHome) -> None:
    log = home.open()
    for number in range(5):
        append(log, make_batch(1, b"%d" % number))
    home.stop(clean=True)
    path = _last_log(home)
    path.write_bytes(path.read_bytes()[:-3])
    log = home.open()
    assert [value for _, value in read_values(log)] == [b"0", b"1", b"2", b"3"]
    assert append(log).base_offset == 4


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("flushes", [True, False])
def test_producers_are_restored(home: LogHome, clean: bool, flushes: bool) -> None:
    log = home.open()
    for number in range(40):
        append(log, make_batch(2, b"v" * 100, producer=(number % 3, 0, number // 3 * 2)))
        if flushes and number == 20:
            log.flush()
            assert home.directory is not None
            home.directory.checkpoint()
    for _ in range(2):
        log = home.reopen(clean=clean)
        repeated = append(log, make_batch(2, b"v" * 100, producer=(0, 0, 26)))
        assert repeated.duplicate
        assert repeated.base_offset == 78
        assert {
            entry.producer_id: entry.last_sequence for entry in log.producer_state.entries.values()
        } == {
            0: 27,
            1: 25,
            2: 25,
        }


def test_damaged_snapshots_are_not_used(home: LogHome) -> None:
    log = home.open()
    for number in range(40):
        append(log, make_batch(2, b"v" * 100, producer=(1, 0, number * 2)))
    home.stop(clean=True)
    for path in home.log_path.glob("*.snapshot"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    log = home.open()
    assert append(log, make_batch(2, b"v" * 100, producer=(1, 0, 78))).duplicate


def test_a_missing_tail_below_the_recovery_point_is_survived(home: LogHome) -> None:
    log = home.open()
    for number in range(5):
        append(log, make_batch(1, b"%d" % number))
    log.flush()
    assert home.directory is not None
    home.directory.checkpoint()
    home.stop(clean=False)
    path = _last_log(home)
    path.write_bytes(path.read_bytes()[:-100])
    log = home.open()
    assert [value for _, value in read_values(log)] == [b"0", b"1", b"2"]
    assert log.recovery_point <= log.log_end_offset
    assert append(log).base_offset == log.log_end_offset - 1


# Producers


def flushed_with_a_producer(home: LogHome, appends: int) -> PartitionLog:
    """Return a log with index files and no snapshot, whose first producer came after the start."""
    log = home.open()
    for _ in range(5):
        append(log, make_batch(value=b"v" * 100))
    log = home.reopen(clean=True)
    for number in range(appends):
        append(log, make_batch(producer=(5, 0, number)))
    log.flush()
    assert home.directory is not None
    home.directory.checkpoint()
    return log


def test_producers_are_known_after_a_kill_although_nothing_was_left_to_recover(
    home: LogHome,
) -> None:
    flushed_with_a_producer(home, 3)
    log = home.reopen(clean=False)
    assert [
        (each.producer_id, each.last_sequence) for each in log.producer_state.entries.values()
    ] == [(5, 2)]


def test_a_torn_tail_does_not_keep_producers_from_being_replayed(home: LogHome) -> None:
    log = flushed_with_a_producer(home, 3)
    append(log, make_batch(producer=(5, 0, 3)))
    path, size = log.segments[-1].log.path, log.segments[-1].size
    home.stop(clean=False)
    os.truncate(path, size - len(make_batch()) + 20)
    log = home.open()
    assert log.log_end_offset == 8
    assert [each.last_sequence for each in log.producer_state.entries.values()] == [2]


def test_snapshots_of_a_lost_tail_are_not_used_later(home: LogHome) -> None:
    log = flushed_with_a_producer(home, 2)
    append(log, make_batch(producer=(6, 0, 0)))
    log.roll()
    first, second = (segment.log.path for segment in log.segments)
    size = log.segments[0].size
    home.stop(clean=False)
    second.unlink()
    os.truncate(first, size - len(make_batch()))
    log = home.open()
    assert log.log_end_offset == 7
    append(log)
    append(log)
    log.truncate_to(8)
    assert [each.producer_id for each in log.producer_state.entries.values()] == [5]
