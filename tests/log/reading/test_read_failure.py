"""A disk that cannot be read takes a log offline, and the broker is notified."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from harness.in_process.log_home import LogHome, UnsyncedDisk, append, make_batch
from millstream.env.disk import File
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition


class BadDisk(UnsyncedDisk):
    """A disk whose reads can be made to fail with a given error."""

    reason = 0

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        return BadFile(self, super().open(path, create=create, readonly=readonly))  # type: ignore[return-value]


class BadFile:
    def __init__(self, disk: BadDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, size: int, position: int) -> bytes:
        if self._disk.reason:
            raise OSError(self._disk.reason, "no")
        return self._file.pread(size, position)


def test_an_error_of_the_disk_takes_the_log_offline(tmp_path: Path) -> None:
    disk = BadDisk()
    home = LogHome(tmp_path, disk=disk)
    log = home.open()
    append(log, make_batch(3))
    failed: list[TopicPartition] = []
    assert home.directory is not None
    home.directory.storage.on_failure = failed.append
    found = log.read(0, 1 << 20, 3, at_least_one=True)
    disk.reason = errno.EIO
    for read in (found.read, lambda: log.read(1, 1 << 20, 3, at_least_one=True).read()):
        with pytest.raises(BrokerError) as caught:
            read()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert failed == [home.partition], "once"
    disk.reason = 0
    with pytest.raises(BrokerError, match="offline"):
        append(log, make_batch(1))


def test_a_shortage_of_descriptors_passes(tmp_path: Path) -> None:
    disk = BadDisk()
    log = LogHome(tmp_path, disk=disk).open()
    append(log, make_batch(3))
    disk.reason = errno.EMFILE
    with pytest.raises(BrokerError):
        log.read(0, 1 << 20, 3, at_least_one=True).read()
    disk.reason = 0
    append(log, make_batch(1))
    assert len(log.read(0, 1 << 20, 4, at_least_one=True).read()) > 0
