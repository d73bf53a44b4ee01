"""A full disk: the append fails, the log is unchanged, and appends succeed once there is space."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from crash.stored_log import (
    append,
    check_kept,
    opened,
    placed_in,
    read_from,
    sample_batch,
)
from harness.in_process.log_home import UnsyncedDisk
from millstream.env.disk import Buffer, File
from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import read_header

BATCHES = 30


class Room:
    """The number of bytes that may still be written."""

    def __init__(self) -> None:
        self.bytes_left: int | None = None

    def reserve(self, wanted: int) -> int:
        if self.bytes_left is None:
            return wanted
        granted = min(wanted, self.bytes_left)
        self.bytes_left -= granted
        return granted

    @property
    def is_full(self) -> bool:
        return self.bytes_left == 0


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class CrampedFile:
    """A file that writes as many bytes as there is space for, and then fails."""

    def __init__(self, file: File, room: Room) -> None:
        self._file = file
        self._room = room

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def write(self, data: Buffer, position: int) -> None:
        # Overwriting needs no space, but no log overwrites.
        granted = self._room.reserve(len(data))
        self._file.write(memoryview(data)[:granted], position)
        if granted < len(data):
            raise no_space()


class CrampedDisk(UnsyncedDisk):
    """A disk with limited space."""

    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = Room()

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:  # type: ignore[override]
        if create and self.room.is_full and not path.exists():
            raise no_space()
        file = super().open(path, create=create, readonly=readonly)
        return CrampedFile(file, self.room)  # type: ignore[return-value]

    def write_atomic(self, path: Path, data: Buffer) -> None:
        if self.room.reserve(len(data)) < len(data):
            raise no_space()
        super().write_atomic(path, data)


def fill(log: PartitionLog, first: int, sequence: int) -> tuple[int, int]:
    """Append batches until one fails; return the next number and sequence."""
    for number in range(first, BATCHES):
        batch = sample_batch(number, sequence)
        end_offset = log.log_end_offset
        try:
            append(log, batch)
        except BrokerError as error:
            if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            assert log.log_end_offset == end_offset
            return number, sequence
        sequence += read_header(batch).count
    return BATCHES, sequence


def expected_bytes(tmp_path: Path) -> bytes:
    path = tmp_path / "roomy"
    with opened(path) as (_, log):
        assert fill(log, 0, 0)[0] == BATCHES
        return read_from(log, 0)


@pytest.mark.parametrize("how", ["goes-on", "killed-while-full"])
def test_room_runs_out_at_any_byte(tmp_path: Path, how: str) -> None:
    expected = expected_bytes(tmp_path)
    for room_bytes in range(0, len(expected) + 2000, 101):
        path = tmp_path / f"{how}-{room_bytes}"
        disk = CrampedDisk()
        with opened(path, disk) as (_, log):
            disk.room.bytes_left = room_bytes
            number, sequence = fill(log, 0, 0)
            for _ in range(2):
                assert fill(log, number, sequence)[0] == number
            if number:
                assert expected.startswith(read_from(log, 0))
            if how == "goes-on":
                disk.room.bytes_left = None
                assert fill(log, number, sequence)[0] == BATCHES
                assert read_from(log, 0) == expected
        if how == "goes-on":
            check_kept(path, placed_in(path), [])
            continue
        with opened(path) as (_, log):
            assert read_from(log, 0) == expected[: len(read_from(log, 0))]
            number_now = sum(1 for _ in placed_in(path))
            assert number_now == number
            assert fill(log, number, sequence)[0] == BATCHES
            assert read_from(log, 0) == expected


def test_a_stop_without_room_loses_nothing(tmp_path: Path) -> None:
    expected = expected_bytes(tmp_path)
    for room_bytes in range(0, 1500, 97):
        path = tmp_path / f"stop-{room_bytes}"
        disk = CrampedDisk()
        try:
            with opened(path, disk, clean=True) as (_, log):
                assert fill(log, 0, 0)[0] == BATCHES
                disk.room.bytes_left = room_bytes
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
        with opened(path) as (_, log):
            assert read_from(log, 0) == expected


def test_a_flush_without_room_is_made_again(tmp_path: Path) -> None:
    disk = CrampedDisk()
    with opened(tmp_path, disk) as (_, log):
        _, sequence = fill(log, 0, 0)
        log.assign_epoch(7)
        disk.room.bytes_left = 0
        for _ in range(2):
            with pytest.raises(BrokerError, match="cannot be flushed"):
                log.flush()
            assert log in log.storage.flush_due
        assert log.recovery_point == 0
        disk.room.bytes_left = None
        log.flush()
        assert log.recovery_point == log.log_end_offset
        append(log, sample_batch(BATCHES, sequence))


def test_a_log_without_room_for_a_truncation_is_unchanged(tmp_path: Path) -> None:
    disk = CrampedDisk()
    with opened(tmp_path, disk) as (directory, log):
        assert fill(log, 0, 0)[0] == BATCHES
        log.flush()
        directory.checkpoint()
        end_offset, everything = log.log_end_offset, read_from(log, 0)
        disk.room.bytes_left = 0
        for cut in (lambda: log.truncate_to(5), lambda: log.truncate_fully_and_start_at(9)):
            with pytest.raises(BrokerError, match="cannot be truncated"):
                cut()
            assert log.log_end_offset == end_offset
            assert read_from(log, 0) == everything
        assert directory.storage.are_points_stale
        disk.room.bytes_left = None
        log.truncate_to(5)
        assert log.log_end_offset <= 5
        log.truncate_fully_and_start_at(9)
        assert (log.log_start_offset, log.log_end_offset) == (9, 9)
