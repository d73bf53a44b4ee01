"""Checkpoints: small text files with offsets, in Kafka's format.

    recovery-point-offset-checkpoint    the recovery point of each log
    log-start-offset-checkpoint         the log start offset of each log, unless it is 0
    replication-offset-checkpoint       high watermarks
    leader-epoch-checkpoint             one per log: where each leader epoch starts

File: a line with the version `0`, a line with the number of entries, and one line per entry with
its fields separated by spaces. Files are replaced as a whole and durably. A file that cannot be
parsed raises ValueError: guessing an offset is worse than stopping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.model.topic import TopicPartition

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"

_VERSION: Final = "0"


def _entries(disk: Disk, path: Path) -> list[list[str]]:
    """Return the fields of each entry; none if the file is missing."""
    if not disk.exists(path):
        return []
    lines = disk.read(path).decode("ascii", "replace").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or lines[1] != str(len(lines) - 2):
        raise ValueError(f"{path} is damaged: expected version {_VERSION} and an entry count")
    return [line.split(" ") for line in lines[2:]]


def _write(disk: Disk, path: Path, lines: list[str]) -> None:
    text = "\n".join([_VERSION, str(len(lines)), *lines, ""])
    disk.write_atomic(path, text.encode())


def read_offsets(disk: Disk, path: Path) -> dict[TopicPartition, int]:
    """Return offsets by partition; empty if the file is missing."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partition, offset in _entries(disk, path)
        }
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def write_offsets(disk: Disk, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file durably."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    _write(disk, path, lines)


def read_epochs(disk: Disk, path: Path) -> list[tuple[int, int]]:
    """Return pairs (leader epoch, start offset); empty if the file is missing."""
    try:
        return [(int(epoch), int(offset)) for epoch, offset in _entries(disk, path)]
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def write_epochs(disk: Disk, path: Path, entries: Iterable[tuple[int, int]]) -> None:
    """Replace the file durably."""
    _write(disk, path, [f"{epoch} {offset}" for epoch, offset in entries])
