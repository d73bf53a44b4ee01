"""A data folder for tests of the log layer, with a fixed clock."""

from __future__ import annotations

import os
import random
from pathlib import Path

from millstream.env.disk import Buffer, Disk, File, SystemDisk, SystemFile
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.log import AppendResult, PartitionLog
from millstream.log.storage import LogOptions
from millstream.model.config import TopicConfig
from millstream.model.topic import TopicPartition
from millstream.records.batch import check_batch, scan
from millstream.records.builder import build_batch
from millstream.records.record import Record, decode_records

NOW_MS = 1_700_000_000_000
SMALL = TopicConfig(segment_bytes=1500, index_interval_bytes=200)


class _UnsyncedFile(SystemFile):
    __slots__ = ()

    def sync(self) -> None:
        pass


class UnsyncedDisk(SystemDisk):
    """A file system without fsync: enough for tests that kill a process, not the machine."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False, readonly: bool = False) -> File:
        return _UnsyncedFile(os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644))

    def write_atomic(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    def sync_dir(self, path: Path) -> None:
        pass


class StillClock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


class LogHome:
    """A data folder that a test opens, closes cleanly or uncleanly, and opens again."""

    partition = TopicPartition("events", 0)
    topic_id = bytes(range(16))

    def __init__(self, path: Path, config: TopicConfig = SMALL, disk: Disk | None = None) -> None:
        self.path = path
        self.config = config
        self.disk = disk or UnsyncedDisk()
        self.clock = StillClock()
        self.directory: LogDirectory | None = None
        self.options = LogOptions(open_files_max=16, recovery_threads=1)

    @property
    def log_path(self) -> Path:
        return self.path / str(self.partition)

    def open(self) -> PartitionLog:
        self.directory = LogDirectory.open(
            self.path, self.disk, self.clock, random.Random(7), self.options
        )
        log = self.directory.log(self.partition, self.topic_id, self.config)
        self.directory.recover()
        return log

    def stop(self, *, clean: bool) -> None:
        """Stop uncleanly, as if killed, but release the lock."""
        assert self.directory is not None
        self.directory.close(clean)
        self.directory = None

    def reopen(self, *, clean: bool) -> PartitionLog:
        self.stop(clean=clean)
        return self.open()


def make_batch(
    count: int = 1,
    value: bytes = b"value",
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    key: bytes | None = b"key",
    is_transactional: bool = False,
) -> bytearray:
    records = [Record(i, timestamp, key, value, []) for i in range(count)]
    producer_id, epoch, sequence = producer
    return build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def append(log: PartitionLog, batch: bytearray | None = None, epoch: int = 0) -> AppendResult:
    batch = make_batch() if batch is None else batch
    return log.append_as_leader(memoryview(batch), check_batch(batch), epoch)


def read_batches(log: PartitionLog, start: int | None = None, max_bytes: int = 700) -> list[bytes]:
    """Return all batches from `start` on, read sequentially."""
    offset = log.log_start_offset if start is None else start
    batches: list[bytes] = []
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes, log.log_end_offset, at_least_one=True).read()
        found = scan(data)
        assert found, f"no batch at offset {offset}"
        assert found[-1][0] + found[-1][1].size == len(data), "the read ends inside a batch"
        for position, header in found:
            batches.append(data[position : position + header.size])
            offset = header.next_offset
    return batches


def read_values(log: PartitionLog, start: int | None = None) -> list[tuple[int, bytes | None]]:
    start = log.log_start_offset if start is None else start
    return [
        (record.offset, record.value)
        for batch in read_batches(log, start)
        for record in decode_records(batch, 1 << 20)
        if record.offset >= start
    ]
