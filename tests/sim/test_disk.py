"""The simulated disk behaves like the real one, and a power failure loses unsynced writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from millstream.env.disk import Disk, SystemDisk
from sim.clock import SimClock
from sim.disk import SimDisk, Volume
from sim.loop import VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


@pytest.fixture
def simulated(loop: VirtualLoop) -> SimDisk:
    return SimDisk(Volume(SimClock(loop), Random(0)), loop.process("p"))


@pytest.fixture(params=["system", "simulated"])
def disk(request: pytest.FixtureRequest, simulated: SimDisk, tmp_path: Path) -> Disk:
    if request.param == "system":
        return SystemDisk()
    simulated.mkdir(tmp_path)
    return simulated


# Both disks


def test_a_read_returns_written_bytes(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(b"hello", 0)
    file.write(memoryview(b", world"), 5)
    assert file.size() == disk.size(tmp_path / "f") == 12
    assert file.pread(5, 0) == b"hello"
    assert file.pread(100, 7) == b"world"
    assert file.pread(10, 50) == b""
    buffer = bytearray(20)
    assert file.pread_into(memoryview(buffer), 6) == 6
    assert bytes(buffer[:6]) == b" world"
    file.close()
    assert disk.read(tmp_path / "f") == b"hello, world"


def test_writing_past_the_end_leaves_zeros(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(b"x", 3)
    file.close()
    assert disk.read(tmp_path / "f") == b"\0\0\0x"


def test_truncate_shortens_and_extends(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(b"abcdef", 0)
    file.truncate(2)
    file.truncate(4)
    file.close()
    assert disk.read(tmp_path / "f") == b"ab\0\0"


def test_missing_files(disk: Disk, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for call in (disk.open, disk.read, disk.size, disk.modified_ms, disk.listdir):
        with pytest.raises(FileNotFoundError):
            call(missing)
    with pytest.raises(FileNotFoundError):
        disk.rename(missing, tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        disk.open(missing / "f", create=True)
    assert not disk.exists(missing)
    disk.remove(missing)
    disk.remove_tree(missing)


def test_a_file_that_is_removed_while_open_stays_readable(disk: Disk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.write(b"still here", 0)
    disk.remove(tmp_path / "f")
    assert file.pread(100, 0) == b"still here"
    file.close()
    assert not disk.exists(tmp_path / "f")


def test_files_and_directories_are_created_renamed_and_removed(disk: Disk, tmp_path: Path) -> None:
    disk.mkdir(tmp_path / "a" / "b")
    disk.mkdir(tmp_path / "a" / "b")
    disk.write_atomic(tmp_path / "a" / "b" / "f", b"1")
    disk.write_atomic(tmp_path / "g", b"2")
    disk.rename(tmp_path / "a" / "b" / "f", tmp_path / "g")
    assert disk.read(tmp_path / "g") == b"1"
    assert disk.listdir(tmp_path / "a" / "b") == []
    disk.write_atomic(tmp_path / "a" / "b" / "f", b"3")
    disk.rename(tmp_path / "a", tmp_path / "c")
    assert disk.read(tmp_path / "c" / "b" / "f") == b"3"
    assert sorted(disk.listdir(tmp_path)) == ["c", "g"]
    disk.remove_tree(tmp_path / "c")
    assert disk.listdir(tmp_path) == ["g"]
    disk.sync_dir(tmp_path)


def test_a_closed_or_read_only_file_can_not_be_written(disk: Disk, tmp_path: Path) -> None:
    disk.write_atomic(tmp_path / "f", b"abc")
    file = disk.open(tmp_path / "f", readonly=True)
    with pytest.raises(OSError, match=r"descriptor|reading"):
        file.write(b"x", 0)
    file.close()
    with pytest.raises(OSError, match=r"descriptor|closed"):
        file.pread(1, 0)
    file.close()


# The simulated disk

_ROOT = Path("/data")


def _written(disk: SimDisk) -> Path:
    """Write a file with 4 synced bytes, then 4 bytes in two writes without a sync."""
    path = _ROOT / "f"
    disk.mkdir(_ROOT)
    disk.sync_dir(Path("/"))
    file = disk.open(path, create=True)
    file.write(b"safe", 0)
    file.sync()
    disk.sync_dir(_ROOT)
    file.write(b"12", 4)
    file.write(b"34", 6)
    return path


def test_a_power_failure_keeps_synced_bytes_and_any_part_of_the_rest(loop: VirtualLoop) -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimDisk(Volume(SimClock(loop), Random(seed)), loop.process("p"))
        path = _written(disk)
        disk.volume.lose_power()
        outcomes.add(disk.read(path))
    assert outcomes == {b"safe", b"safe1", b"safe12", b"safe123", b"safe1234", b"safe\0\x0034"}


def test_a_name_that_was_not_synced_may_be_lost(loop: VirtualLoop) -> None:
    found = set()
    for seed in range(50):
        disk = SimDisk(Volume(SimClock(loop), Random(seed)), loop.process("p"))
        path = _written(disk)
        disk.rename(path, _ROOT / "g")
        disk.volume.lose_power()
        found.add(tuple(disk.listdir(_ROOT)))
    assert found == {("f",), ("g",)}


def test_an_atomic_write_survives_a_power_failure(simulated: SimDisk) -> None:
    simulated.mkdir(_ROOT)
    simulated.sync_dir(Path("/"))
    simulated.write_atomic(_ROOT / "f", b"whole")
    simulated.volume.lose_power()
    assert simulated.read(_ROOT / "f") == b"whole"


def test_calls_fail_on_a_failing_disk(simulated: SimDisk) -> None:
    path = _written(simulated)
    simulated.volume.errors = 1.0
    file = simulated.open(path)
    for call in (file.sync, lambda: file.write(b"x", 0), lambda: simulated.sync_dir(_ROOT)):
        with pytest.raises(OSError, match="simulated failure"):
            call()
