"""Flushes that fail: a full disk, no descriptors, a bug."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.in_process.log_home import NOW_MS, LogHome, UnsyncedDisk, append, make_batch
from log.full_disk import FullDisk
from millstream.env.disk import File, SystemDisk
from millstream.log.files import FileCache
from millstream.log.flush.flusher import Flusher
from millstream.log.flush.ticket import FlushTicket
from millstream.log.log import PartitionLog
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode

NewHome = Callable[..., LogHome]

#: One index entry per batch, so that a flush has entries to write.
CONFIG = TopicConfig(index_interval_bytes=1, retention_ms=1000, file_delete_delay_ms=0)
#: More index entries than a flush leaves in memory.
BATCHES = 600


def pins(log: PartitionLog) -> int:
    handles = [
        handle
        for segment in log.segments
        for handle in (segment.log, segment.offset_index.handle, segment.time_index.handle)
    ]
    return sum(handle.pins for handle in handles)


def deleted_files_held(folder: Path) -> list[str]:
    """Return removed files below a folder that this process still has open."""
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of `listdir` itself
            continue
        if target.startswith(str(folder)) and target.endswith(" (deleted)"):
            found.append(target)
    return found


def test_flushes_on_a_full_disk_hold_no_files(new_home: NewHome) -> None:
    disk = FullDisk()
    home = new_home(CONFIG, disk)
    log = home.open()
    for _ in range(BATCHES):
        append(log, make_batch())
    disk.is_full = True
    for _ in range(3):
        with pytest.raises(BrokerError) as caught:
            log.begin_flush()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert pins(log) == 0
    disk.is_full = False
    home.clock.now_ms = NOW_MS + 1_000_000
    removed = log.expire(home.clock.now_ms, log.log_end_offset)
    assert any(path.name.endswith(".log.deleted") for path in removed)
    for path in removed:
        path.unlink()
    assert deleted_files_held(home.path) == []


def test_a_flush_is_made_once_there_is_room(new_home: NewHome) -> None:
    disk = FullDisk()
    log = new_home(CONFIG, disk).open()
    for _ in range(BATCHES):
        append(log, make_batch())
    disk.is_full = True
    with pytest.raises(BrokerError):
        log.begin_flush()
    disk.is_full = False
    ticket = log.begin_flush()
    assert ticket is not None
    assert pins(log) > 0
    ticket.run()
    log.finish_flush(ticket)
    assert pins(log) == 0
    assert log.recovery_point == log.log_end_offset == BATCHES


def test_a_ticket_pins_all_of_its_files_or_none(tmp_path: Path) -> None:
    disk = UnsyncedDisk()
    cache = FileCache(disk, 16)
    (tmp_path / "there").touch()
    there, missing = cache.handle(tmp_path / "there"), cache.handle(tmp_path / "missing")
    ticket = FlushTicket(disk, tmp_path, 0, 0, False)
    ticket.add(there)
    ticket.add(missing)
    with pytest.raises(FileNotFoundError):
        ticket.pin()
    assert (there.pins, missing.pins) == (0, 0)
    (tmp_path / "missing").touch()
    ticket.pin()
    assert (there.pins, missing.pins) == (1, 1)
    ticket.release()
    assert (there.pins, missing.pins) == (0, 0)
    cache.close()


class ShortDisk(UnsyncedDisk):
    """A disk whose small files cannot be opened, as if no descriptor were left."""

    __slots__ = ("is_short",)

    def __init__(self) -> None:
        self.is_short = False

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        if self.is_short and path.suffix not in (".log", ".index", ".timeindex"):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return super().open(path, create=create, readonly=readonly)


def test_a_lack_of_descriptors_takes_no_log_offline(new_home: NewHome) -> None:
    disk = ShortDisk()
    home = new_home(TopicConfig(), disk)
    log = home.open()
    append(log, make_batch())
    unsynced = list(log.unsynced.paths)
    assert unsynced
    disk.is_short = True
    with pytest.raises(BrokerError):
        log.flush()
    assert (log.failure, log.recovery_point) == (None, 0)
    assert log.unsynced.paths == unsynced
    disk.is_short = False
    append(log, make_batch())
    log.flush()
    assert log.recovery_point == log.log_end_offset == 2
    assert log.unsynced.paths == []


def test_an_unexpected_error_of_a_sync_takes_the_log_offline(
    new_home: NewHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that syncs for all logs continues."""

    async def flush(log: PartitionLog) -> None:
        flusher = Flusher()
        with pytest.raises(BrokerError, match="a bug"):
            await flusher.request(log)
        assert log.failure is not None
        await flusher.close()

    def fail(self: SystemDisk, path: Path) -> None:
        raise RuntimeError("a bug")

    log = new_home(TopicConfig()).open()
    append(log, make_batch())
    monkeypatch.setattr(UnsyncedDisk, "sync_dir", fail)
    asyncio.run(flush(log))


def test_one_log_that_raises_leaves_the_flushes_of_others_alone(
    new_home: NewHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flush(bad: PartitionLog, good: PartitionLog) -> None:
        flusher = Flusher()
        futures = [flusher.request(bad), flusher.request(good)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(results[0], BrokerError)
        assert results[1] == 1
        await flusher.close()

    begin = PartitionLog.begin_flush

    def fail(self: PartitionLog, *, is_last: bool = False) -> FlushTicket | None:
        if self is bad:
            raise RuntimeError("a bug")
        return begin(self, is_last=is_last)

    bad, good = new_home(TopicConfig()).open(), new_home(TopicConfig()).open()
    append(bad)
    append(good)
    monkeypatch.setattr(PartitionLog, "begin_flush", fail)
    asyncio.run(flush(bad, good))
