"""A flush that can't begin, for lack of room: nothing of it is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.log_home import NOW_MS, LogHome, append, make_batch
from log.full_disk import FullDisk
from millstream.log.log import PartitionLog
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode

NewHome = Callable[..., LogHome]

#: An entry of the index for each batch, so that a flush has some to write.
CONFIG = TopicConfig(index_interval_bytes=1, retention_ms=1000, file_delete_delay_ms=0)
#: More than a flush leaves in memory.
BATCHES = 600


def pins(log: PartitionLog) -> int:
    handles = [
        handle
        for segment in log.segments
        for handle in (segment.log, segment.offset_index.handle, segment.time_index.handle)
    ]
    return sum(handle.pins for handle in handles)


def deleted_files_held(folder: Path) -> list[str]:
    """Files below a folder that were removed, and whose space this process keeps."""
    found: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own
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
