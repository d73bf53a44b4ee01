"""Snapshot files of producer state."""

from __future__ import annotations

from pathlib import Path

from harness.in_process.log_home import UnsyncedDisk, make_batch
from millstream.log.producers.producer_state import ProducerState
from millstream.log.producers.snapshot import ProducerSnapshots
from millstream.records.batch import read_header


def _state(producer_id: int) -> ProducerState:
    state = ProducerState()
    state.append(read_header(make_batch(producer=(producer_id, 0, 0))), 0, 5)
    return state


def _snapshots(folder: Path, *offsets: int) -> ProducerSnapshots:
    snapshots = ProducerSnapshots(UnsyncedDisk(), folder, [])
    for offset in offsets:
        snapshots.write(offset, _state(offset))
    return snapshots


def _names(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.snapshot"))


def test_the_newest_snapshot_within_the_limit_is_read(tmp_path: Path) -> None:
    snapshots = _snapshots(tmp_path, 10, 20, 30)
    state, offset = snapshots.newest()
    assert (list(state.entries), offset) == ([30], 30)
    state, offset = snapshots.newest(29)
    assert (list(state.entries), offset) == ([20], 20)
    state, offset = snapshots.newest(9)
    assert (state.entries, offset) == ({}, 0)


def test_a_damaged_or_missing_snapshot_is_skipped(tmp_path: Path) -> None:
    snapshots = _snapshots(tmp_path, 10, 20, 30)
    (tmp_path / f"{30:020d}.snapshot").write_bytes(b"torn")
    (tmp_path / f"{20:020d}.snapshot").unlink()
    assert snapshots.newest()[1] == 10


def test_a_snapshot_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    snapshots = _snapshots(tmp_path, 10)
    snapshots.write(10, ProducerState())
    assert snapshots.offsets == [10]
    assert snapshots.newest()[0].entries == {}


def test_snapshots_above_a_truncation_are_removed(tmp_path: Path) -> None:
    snapshots = _snapshots(tmp_path, 10, 20, 30)
    snapshots.truncate_to(20)
    assert snapshots.offsets == _names(tmp_path) == [10, 20]
    snapshots.keep([20])
    assert snapshots.offsets == _names(tmp_path) == [20]
