from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.in_process.log_home import LogHome, UnsyncedDisk, append
from millstream.env.disk import File, SystemFile
from millstream.log.flush.flusher import Flusher
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode

NewHome = Callable[..., LogHome]


class SlowDisk(UnsyncedDisk):
    """A disk that counts the syncs of `.log` files, delays them until `go`, and can fail them."""

    __slots__ = ("fails", "go", "syncs")

    def __init__(self) -> None:
        self.go = threading.Event()
        self.syncs = 0
        self.fails = False

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        file = super().open(path, create=create, readonly=readonly)
        return SlowFile(self, file.fileno()) if path.suffix == ".log" else file


class SlowFile(SystemFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: SlowDisk, fd: int) -> None:
        super().__init__(fd)
        self._disk = disk

    def sync(self) -> None:
        assert self._disk.go.wait(10)
        self._disk.syncs += 1
        if self._disk.fails:
            raise OSError(5, "Input/output error")


def test_requests_share_the_next_sync(new_home: NewHome) -> None:
    asyncio.run(_requests_share_the_next_sync(new_home))


async def _requests_share_the_next_sync(new_home: NewHome) -> None:
    disk = SlowDisk()
    log = new_home(TopicConfig(), disk).open()
    flusher = Flusher()
    append(log)
    first = flusher.request(log)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = []
    for _ in range(50):
        append(log)
        later.append(flusher.request(log))
    assert not first.done()
    disk.go.set()
    assert await first == 1
    assert await asyncio.gather(*later) == [51] * 50
    assert disk.syncs == 2
    assert log.recovery_point == 51
    await flusher.close()


def test_a_failed_sync_takes_the_log_offline(new_home: NewHome) -> None:
    asyncio.run(_a_failed_sync_takes_the_log_offline(new_home))


async def _a_failed_sync_takes_the_log_offline(new_home: NewHome) -> None:
    disk = SlowDisk()
    disk.go.set()
    home = new_home(TopicConfig(), disk)
    log = home.open()
    flusher = Flusher()
    append(log)
    disk.fails = True
    with pytest.raises(BrokerError) as caught:
        await flusher.request(log)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0
    with pytest.raises(BrokerError):
        append(log)
    assert len(log.read(0, 1000, 1, at_least_one=True)) > 0
    await flusher.close()
    disk.fails = False
    log = home.reopen(clean=True)
    assert home.directory is not None
    assert not home.directory.was_clean
    assert log.log_end_offset == 1


def test_truncation_during_a_flush_is_not_undone_by_it(new_home: NewHome) -> None:
    asyncio.run(_truncation_during_a_flush_is_not_undone_by_it(new_home))


async def _truncation_during_a_flush_is_not_undone_by_it(new_home: NewHome) -> None:
    disk = SlowDisk()
    log = new_home(TopicConfig(), disk).open()
    flusher = Flusher()
    for _ in range(5):
        append(log)
    future = flusher.request(log)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    log.truncate_to(2)
    append(log)
    disk.go.set()
    assert await future == 0
    assert log.recovery_point == 0
    assert await flusher.request(log) == 3
    await flusher.close()


def test_without_thread(new_home: NewHome) -> None:
    asyncio.run(_without_thread(new_home))


async def _without_thread(new_home: NewHome) -> None:
    log = new_home().open()
    flusher = Flusher(is_threaded=False)
    assert await flusher.request(log) == 0
    append(log)
    assert await flusher.request(log) == 1
    await flusher.close()
