"""The list of log folders after crashes and power failures."""

from __future__ import annotations

from pathlib import Path

from harness.in_process.log_home import UnsyncedDisk
from millstream.log.directory.replica_folders import REPLICA_FOLDERS, ReplicaFolders

ONE, OTHER = bytes(15) + b"\x05", bytes(15) + b"\x06"


class BootedDisk(UnsyncedDisk):
    """A machine that can be rebooted."""

    boot = "first"

    def boot_id(self) -> str:
        return self.boot


def test_a_missing_folder_is_noticed(tmp_path: Path) -> None:
    disk = BootedDisk()
    folders = ReplicaFolders(disk, tmp_path)
    assert folders.is_missing
    folders.rewrite({})
    folders.add("t-0", ONE)
    folders.add("t-1", ONE)
    folders.remove("t-1")
    again = ReplicaFolders(disk, tmp_path)
    assert not again.is_missing
    assert again.has("t-0", ONE)
    assert not again.has("t-0", OTHER), "a topic of the same name, made later"
    assert not again.has("t-1", ONE)


def test_a_line_of_an_earlier_boot_proves_nothing_until_it_is_rewritten(tmp_path: Path) -> None:
    disk = BootedDisk()
    folders = ReplicaFolders(disk, tmp_path)
    folders.rewrite({})
    folders.add("t-0", ONE)
    disk.boot = "second"
    after = ReplicaFolders(disk, tmp_path)
    assert not after.has("t-0", ONE)
    assert after.has("t-0", ONE, durably=True)
    assert after.has_name("t-0")
    after.rewrite({"t-0": ONE})
    disk.boot = "third"
    assert ReplicaFolders(disk, tmp_path).has("t-0", ONE)


def test_a_torn_line_is_ignored_and_not_continued(tmp_path: Path) -> None:
    disk = BootedDisk()
    folders = ReplicaFolders(disk, tmp_path)
    folders.rewrite({"t-0": ONE})
    folders.add("t-1", ONE)
    path = tmp_path / REPLICA_FOLDERS
    path.write_bytes(path.read_bytes()[:-4])
    torn = ReplicaFolders(disk, tmp_path)
    assert torn.has("t-0", ONE)
    assert not torn.has_name("t-1")
    torn.rewrite({"t-0": ONE, "t-2": OTHER})
    assert ReplicaFolders(disk, tmp_path).has("t-2", OTHER)
