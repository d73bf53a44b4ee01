from __future__ import annotations

from pathlib import Path

import pytest

from harness.in_process.log_home import UnsyncedDisk
from millstream.log.directory.checkpoint import (
    read_epochs,
    read_offsets,
    write_epochs,
    write_offsets,
)
from millstream.model.topic import TopicPartition

DISK = UnsyncedDisk()


def test_offsets_round_trip_in_kafkas_form(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    assert read_offsets(DISK, path) == {}
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b-c", 12): 1 << 40}
    write_offsets(DISK, path, offsets)
    assert path.read_text() == f"0\n2\na 0 5\nb-c 12 {1 << 40}\n"
    assert read_offsets(DISK, path) == offsets


def test_epochs_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    assert read_epochs(DISK, path) == []
    write_epochs(DISK, path, [(0, 0), (3, 17)])
    assert path.read_text() == "0\n2\n0 0\n3 17\n"
    assert read_epochs(DISK, path) == [(0, 0), (3, 17)]


@pytest.mark.parametrize("text", ["", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na b c\n"])
def test_damage_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets"
    path.write_text(text)
    with pytest.raises(ValueError, match="offsets"):
        read_offsets(DISK, path)
