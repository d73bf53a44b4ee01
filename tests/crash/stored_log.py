"""A log on disk with known batches, which tests damage and open again.

The template is made once and copied for each kind of damage. Its batches belong to one idempotent
producer, are of different sizes and codecs, and fill several small segments.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.in_process.log_home import UnsyncedDisk
from millstream.env.clock import SystemClock
from millstream.env.disk import Disk
from millstream.log.directory.data_directory import LogDirectory
from millstream.log.log import AppendResult, PartitionLog
from millstream.model.config import TopicConfig
from millstream.model.topic import TopicPartition
from millstream.records.batch import read_header, scan
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record

PARTITION = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=200)
PRODUCER_ID = 7
EPOCH = 0
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """One batch and its position in a file."""

    base_offset: int
    next_offset: int
    sequence: int
    path: Path
    start: int
    end: int
    data: bytes


def sample_batch(number: int, sequence: int) -> bytearray:
    """Return batch `number`: one to four records, the first with that sequence number."""
    records = [
        Record(n, 1_700_000_000_000 + sequence + n, b"k%d" % n, b"%d-%d " % (number, n) * 4, [])
        for n in range(1 + number % 4)
    ]
    return build_batch(
        records,
        codec=list(CompressionType)[number % 5],
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=sequence,
    )


def append(log: PartitionLog, batch: bytearray) -> AppendResult:
    return log.append_as_leader(memoryview(bytearray(batch)), read_header(batch), EPOCH)


@contextmanager
def opened(
    path: Path, disk: Disk | None = None, *, clean: bool = False, config: TopicConfig = CONFIG
) -> Iterator[tuple[LogDirectory, PartitionLog]]:
    """Open the log in data directory `path`; close it cleanly, or as a kill would leave it."""
    directory = LogDirectory.open(path, disk or UnsyncedDisk(), SystemClock(), random.Random(1))
    is_closed = False
    try:
        log = directory.log(PARTITION, TOPIC_ID, config)
        if not directory.was_clean:
            directory.recover()
        yield directory, log
        directory.close(clean, {PARTITION: log.log_end_offset})
        is_closed = True
    finally:
        if not is_closed:
            directory.close(False)


def flush(directory: LogDirectory, log: PartitionLog) -> None:
    """Flush all batches, and advance the recovery point."""
    ticket = log.begin_flush()
    if ticket is not None:
        ticket.run()
        log.finish_flush(ticket)
    directory.checkpoint()


def make_log(path: Path, batches: int, *, durable: int = 0, clean: bool = False) -> list[Placed]:
    """Write a log whose first `durable` batches are below the recovery point."""
    sequence = 0
    with opened(path, clean=clean) as (directory, log):
        for number in range(batches):
            batch = sample_batch(number, sequence)
            append(log, batch)
            sequence += read_header(batch).count
            if number + 1 == durable:
                flush(directory, log)
    return placed_in(path)


def placed_in(path: Path) -> list[Placed]:
    """Return every batch in the log's files, in order."""
    found = []
    for file in sorted((path / str(PARTITION)).glob("*.log")):
        data = file.read_bytes()
        for start, header in scan(data):
            end = start + header.size
            found.append(
                Placed(
                    header.base_offset,
                    header.next_offset,
                    header.base_sequence,
                    file.relative_to(path),
                    start,
                    end,
                    data[start:end],
                )
            )
    return found


def copy_of(template: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(template, target)
    return target


def read_from(log: PartitionLog, offset: int) -> bytes:
    """Return all bytes from the batch that holds `offset`. Raises BrokerError at damage."""
    found = bytearray()
    while offset < log.log_end_offset:
        data = log.read(offset, _READ_BYTES, log.log_end_offset, at_least_one=True).read()
        batches = scan(data)
        assert batches, f"nothing at {offset} of {log.log_end_offset}"
        offset = batches[-1][1].next_offset
        found += data
    return bytes(found)


def check_kept(path: Path, kept: list[Placed], lost: list[Placed]) -> None:
    """Open the log: it holds exactly `kept`, recognises retries, and accepts appends."""
    expected = b"".join(each.data for each in kept)
    end = kept[-1].next_offset if kept else 0
    with opened(path, clean=True) as (_, log):
        assert log.log_end_offset == end
        assert read_from(log, log.log_start_offset) == expected
        if kept:
            repeated = append(log, as_sent(kept[-1]))
            assert (repeated.duplicate, repeated.base_offset) == (True, kept[-1].base_offset)
        for each in lost:
            again = append(log, as_sent(each))
            assert (again.duplicate, again.base_offset) == (False, each.base_offset)
        next_sequence = (lost or kept)[-1].sequence + read_header((lost or kept)[-1].data).count
        assert append(log, sample_batch(999, next_sequence)).base_offset == log.log_end_offset - 4
        expected = read_from(log, log.log_start_offset)
    with opened(path) as (directory, log):
        assert directory.was_clean
        assert read_from(log, log.log_start_offset) == expected


def as_sent(placed: Placed) -> bytearray:
    batch = bytearray(placed.data)
    batch[:8] = bytes(8)
    return batch
