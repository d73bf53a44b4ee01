"""Checking a stored segment from end to end, for tools and people. Changes nothing.

Brokers check cold data when it is first read (see `reader`); this is for whoever wants to know now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from millstream.env.disk import Disk, File
from millstream.log.reader import read_exactly
from millstream.records.batch import CRC_START, HEADER_BYTES, MAGIC, BatchHeader, read_header
from millstream.records.crc import crc32c

#: No batch is longer: a length beyond it is damage, not a reason to read gigabytes.
_BATCH_BYTES_MAX: Final = (1 << 31) - 1


class Finding(NamedTuple):
    """Something wrong in a `.log` file."""

    path: Path
    position: int
    reason: str


def scrub(disk: Disk, path: Path) -> list[Finding]:
    """Check framing, order and checksum of every batch of the `.log` file `path`."""
    file = disk.open(path, readonly=True)
    try:
        return [Finding(path, position, reason) for position, reason in _flaws(file, path)]
    finally:
        file.close()


def _flaws(file: File, path: Path) -> list[tuple[int, str]]:
    flaws: list[tuple[int, str]] = []
    size, position, next_offset = file.size(), 0, int(path.name.split(".", 1)[0])
    while position < size:
        data = file.pread(HEADER_BYTES, position)
        if len(data) < HEADER_BYTES:
            flaws.append((position, "the file ends inside a batch header"))
            break
        header = read_header(data)
        if header.magic != MAGIC or not HEADER_BYTES <= header.size <= _BATCH_BYTES_MAX:
            flaws.append((position, "no batch header: what follows cannot be told apart"))
            break
        if header.size > size - position:
            flaws.append((position, "the file ends inside a batch"))
            break
        reason = _flaw(file, position, header, next_offset)
        if reason is not None:
            flaws.append((position, reason))
        next_offset = max(next_offset, header.next_offset) if reason is None else next_offset
        position += header.size
    return flaws


def _flaw(file: File, position: int, header: BatchHeader, next_offset: int) -> str | None:
    if header.last_offset_delta < 0 or header.base_offset < next_offset:
        return f"offset {header.base_offset} is out of order"
    data = memoryview(read_exactly(file, header.size, position))
    actual = crc32c(data[CRC_START:])
    if actual != header.crc:
        return f"stored CRC {header.crc:08x} differs from the computed {actual:08x}"
    return None
