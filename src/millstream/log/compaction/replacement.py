"""Replacing segments by cleaned ones, so that a crash leaves either the old or the new ones.

    1. the cleaner writes `<base>.log.cleaned` and its indexes (`.index.cleaned` and so on), synced
    2. `stage` renames them to `.swap`, highest base offset first and each `.log` after its indexes;
       the last of these renames, once synced, decides for the new segments
    3. the old segments are renamed to `.deleted`, synced
    4. `go_live` renames the `.swap` files to their live names

At load, `complete_or_undo` removes `.cleaned` files and all `.swap` files at or above the lowest of
them: they belong to a step 2 that did not end. It completes the steps of the other `.swap` files:
it removes the live segments in their range and renames them. It removes `.deleted` files.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_name,
)
from millstream.records.batch import HEADER_BYTES, LOG_OVERHEAD, read_header

_logger = logging.getLogger(__name__)

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

#: Indexes before the log: where a `.log.swap` exists, its indexes do too.
_STAGE_ORDER: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)


def stage(disk: Disk, directory: Path, bases: Sequence[int]) -> None:
    """Do step 2. Blocks. Changes no live file, so it may run in a thread."""
    for base in sorted(bases, reverse=True):
        for suffix in _STAGE_ORDER:
            source = directory / (segment_name(base, suffix) + CLEANED_SUFFIX)
            if disk.exists(source):
                disk.rename(source, directory / (segment_name(base, suffix) + SWAP_SUFFIX))
    disk.sync_dir(directory)


def bases_of(segments: Sequence[int | Path]) -> list[int]:
    """Return the ascending base offsets of segments given by base offset or by file path."""
    return sorted(item if isinstance(item, int) else _base(item.name) for item in segments)


def is_staged(disk: Disk, directory: Path, bases: Sequence[int]) -> bool:
    """Return whether step 2 is done for all of these segments."""
    return all(
        disk.exists(directory / (segment_name(base, LOG_SUFFIX) + SWAP_SUFFIX)) for base in bases
    )


def go_live(disk: Disk, directory: Path, bases: Sequence[int]) -> None:
    """Do step 4."""
    for base in sorted(bases):
        for suffix in _STAGE_ORDER:
            source = directory / (segment_name(base, suffix) + SWAP_SUFFIX)
            if disk.exists(source):
                disk.rename(source, directory / segment_name(base, suffix))


def complete_or_undo(disk: Disk, directory: Path) -> list[str]:
    """Complete or undo a replacement that a crash interrupted. Returns the remaining names."""
    names = disk.listdir(directory)
    if not any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return names
    cleaned = [_base(name) for name in names if name.endswith(CLEANED_SUFFIX)]
    undone_from = min(cleaned, default=None)
    swaps: set[int] = set()
    for name in names:
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)):
            disk.remove(directory / name)
        elif name.endswith(SWAP_SUFFIX):
            if undone_from is not None and _base(name) >= undone_from:
                disk.remove(directory / name)
            elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                swaps.add(_base(name))
    for base in sorted(swaps):
        _complete(disk, directory, base, [_base(n) for n in names if n.endswith(LOG_SUFFIX)])
    # Indexes without their `.log.swap` belong to a step 2 that was undone.
    for name in disk.listdir(directory):
        if name.endswith(SWAP_SUFFIX):
            disk.remove(directory / name)
    disk.sync_dir(directory)
    return disk.listdir(directory)


def _base(name: str) -> int:
    return int(name.split(".", 1)[0])


def _complete(disk: Disk, directory: Path, base: int, live: list[int]) -> None:
    _logger.warning("%s: completing the replacement of segment %d", directory, base)
    end = _end_offset(disk, directory / (segment_name(base, LOG_SUFFIX) + SWAP_SUFFIX))
    for old in live:
        # An empty replacement covers only its own base offset.
        if old == base or base < old < end:
            for suffix in SEGMENT_SUFFIXES:
                disk.remove(directory / segment_name(old, suffix))
    disk.sync_dir(directory)
    go_live(disk, directory, [base])


def _end_offset(disk: Disk, path: Path) -> int:
    """Return the offset after the last batch; -1 for an empty file."""
    file = disk.open(path, readonly=True)
    try:
        position, end, size = 0, -1, file.size()
        while position + HEADER_BYTES <= size:
            header = read_header(file.pread(HEADER_BYTES, position))
            end = header.next_offset
            position += max(header.batch_length, 1) + LOG_OVERHEAD
        return end
    finally:
        file.close()
