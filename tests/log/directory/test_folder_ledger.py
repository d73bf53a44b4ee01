"""The file that names log folders: what it proves after crashes and power failures."""

from __future__ import annotations

from pathlib import Path

from harness.log_home import UnsyncedDisk
from millstream.log.directory.folder_ledger import LEDGER, FolderLedger

ONE, OTHER = bytes(15) + b"\x05", bytes(15) + b"\x06"


class BootedDisk(UnsyncedDisk):
    """A machine that can be started anew."""

    boot = "first"

    def boot_id(self) -> str:
        return self.boot


def test_a_folder_that_was_made_is_missed(tmp_path: Path) -> None:
    disk = BootedDisk()
    ledger = FolderLedger(disk, tmp_path)
    assert ledger.is_missing
    ledger.rewrite({})
    ledger.made("t-0", ONE)
    ledger.made("t-1", ONE)
    ledger.deleted("t-1")
    again = FolderLedger(disk, tmp_path)
    assert not again.is_missing
    assert again.has("t-0", ONE)
    assert not again.has("t-0", OTHER), "a topic of the same name, made later"
    assert not again.has("t-1", ONE)


def test_a_line_of_an_earlier_boot_proves_nothing_until_it_is_rewritten(tmp_path: Path) -> None:
    disk = BootedDisk()
    ledger = FolderLedger(disk, tmp_path)
    ledger.rewrite({})
    ledger.made("t-0", ONE)
    disk.boot = "second"
    after = FolderLedger(disk, tmp_path)
    assert not after.has("t-0", ONE)
    assert after.has("t-0", ONE, durably=True)
    assert after.has_name("t-0")
    after.rewrite({"t-0": ONE})
    disk.boot = "third"
    assert FolderLedger(disk, tmp_path).has("t-0", ONE)


def test_a_torn_line_is_ignored_and_not_continued(tmp_path: Path) -> None:
    disk = BootedDisk()
    ledger = FolderLedger(disk, tmp_path)
    ledger.rewrite({"t-0": ONE})
    ledger.made("t-1", ONE)
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-4])
    torn = FolderLedger(disk, tmp_path)
    assert torn.has("t-0", ONE)
    assert not torn.has_name("t-1")
    torn.rewrite({"t-0": ONE, "t-2": OTHER})
    assert FolderLedger(disk, tmp_path).has("t-2", OTHER)
