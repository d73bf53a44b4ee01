from __future__ import annotations

from pathlib import Path

from harness.in_process.log_home import UnsyncedDisk
from millstream.log.files import FileCache


def test_the_number_of_open_files_is_bounded(tmp_path: Path) -> None:
    cache = FileCache(UnsyncedDisk(), 3)
    handles = [cache.handle(tmp_path / str(number)) for number in range(10)]
    for _ in range(3):
        for number, handle in enumerate(handles):
            handle.create().write(b"%d" % number, 0)
            assert cache.open_files <= 3
    assert [handle.get().pread(1, 0) for handle in handles] == [b"%d" % n for n in range(10)]
    cache.close()
    assert cache.open_files == 0


def test_a_pinned_file_stays_open(tmp_path: Path) -> None:
    cache = FileCache(UnsyncedDisk(), 2)
    pinned = cache.handle(tmp_path / "pinned")
    pinned.create()
    pinned.pin()
    file = pinned.file
    for number in range(10):
        cache.handle(tmp_path / str(number)).create()
    assert pinned.file is file
    pinned.close()
    assert pinned.file is file
    pinned.unpin()
    assert pinned.file is None


def test_closing_repeatedly_leaks_no_handles(tmp_path: Path) -> None:
    cache = FileCache(UnsyncedDisk(), 4)
    for number in range(200):
        handle = cache.handle(tmp_path / str(number))
        handle.create()
        handle.close()
    assert cache.open_files == 0
    assert len(cache._ring) <= 9
