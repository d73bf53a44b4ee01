"""The set of segment files of one log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.in_process.log_home import NOW_MS, SMALL, StillClock, UnsyncedDisk, make_batch
from millstream.log.directory.log_folder import LogFolder
from millstream.log.directory.replica_folders import ReplicaFolders
from millstream.log.files import FileCache
from millstream.log.flush.unsynced import UnsyncedChanges
from millstream.log.segment import Segment
from millstream.log.segment_files import SegmentFiles, end_of, number_of
from millstream.log.storage import LogOptions, Storage
from millstream.model.topic import TopicPartition


@pytest.fixture
def files(tmp_path: Path) -> SegmentFiles:
    disk, options = UnsyncedDisk(), LogOptions()
    storage = Storage(
        tmp_path,
        disk,
        StillClock(),
        random.Random(1),
        options,
        FileCache(disk, 8),
        ReplicaFolders(disk, tmp_path),
    )
    folder = LogFolder(storage, TopicPartition("t", 0), bytes(16), exists=False)
    unsynced = UnsyncedChanges()
    folder.create(unsynced)
    return SegmentFiles(folder, unsynced)


def _fill(files: SegmentFiles, bases: list[int]) -> list[Segment]:
    """Make segments with these base offsets, each with one batch for each of its offsets."""
    segments = files.restore([])
    files.open_active(segments, bases[0], SMALL)
    for base, end in zip(bases, [*bases[1:], bases[-1] + 2], strict=True):
        if base != bases[0]:
            files.roll(segments, base, SMALL)
        for offset in range(base, end):
            batch = make_batch()
            batch[:8] = offset.to_bytes(8, "big")
            segments[-1].append(batch, offset, offset, NOW_MS, 200)
    return segments


def _logs(files: SegmentFiles) -> list[str]:
    return sorted(path.name for path in files._folder.path.iterdir() if ".log" in path.name)


def test_offsets_belong_to_segments(files: SegmentFiles) -> None:
    segments = _fill(files, [0, 3, 5])
    assert [number_of(segments, offset) for offset in (-1, 0, 2, 3, 4, 5, 99)] == [
        -1, 0, 0, 1, 1, 2, 2,
    ]  # fmt: skip
    assert [end_of(segments, number, 7) for number in range(3)] == [3, 5, 7]
    assert files.active is segments[-1]


def test_a_truncation_ends_at_a_batch_boundary(files: SegmentFiles) -> None:
    segments = _fill(files, [0, 3, 5])
    assert files.truncate_to(segments, 4, 200) == 4
    assert [segment.base_offset for segment in segments] == [0, 3]
    assert files.active is segments[-1]
    assert len(_logs(files)) == 2


def test_retired_segments_are_renamed(files: SegmentFiles) -> None:
    segments = _fill(files, [0, 3, 5])
    paths = files.retire(segments, 0, 2)
    assert [segment.base_offset for segment in segments] == [5]
    assert all(path.name.endswith(".deleted") and path.exists() for path in paths)
    assert len(_logs(files)) == 3


def test_size_is_known_after_unloading(files: SegmentFiles) -> None:
    segments = _fill(files, [0, 3])
    size = sum(segment.size for segment in segments)
    for segment in segments:
        segment.seal()
    files.active = None
    files.unload()
    assert files.loaded is None
    assert files.size_bytes() == size
    fresh = SegmentFiles(files._folder, UnsyncedChanges())
    assert fresh.size_bytes() == size


def test_a_batch_that_does_not_fit_starts_a_segment(files: SegmentFiles) -> None:
    segments = _fill(files, [0])
    assert files.active is segments[0]
    room = SMALL.segment_bytes - segments[0].size
    assert not files.must_roll(SMALL, room, 2, NOW_MS)
    assert files.must_roll(SMALL, room + 1, 2, NOW_MS)
    assert files.must_roll(SMALL, 1, 2, NOW_MS + SMALL.segment_ms + 1)
    assert files.must_roll(SMALL, 1, 1 << 31, NOW_MS)
