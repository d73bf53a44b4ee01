"""Offset and time index, in memory and in their files."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.in_process.log_home import UnsyncedDisk
from millstream.log.files import FileCache
from millstream.log.index.offset_index import OffsetIndex
from millstream.log.index.time_index import TimeIndex


def _offset_index(path: Path, entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(FileCache(UnsyncedDisk(), 8).handle(path), 1000)
    index.start()
    for offset, position in entries:
        index.append(offset, position)
    return index


def test_search_in_memory_and_in_the_file(tmp_path: Path) -> None:
    entries = [(1000 + i * 3, i * 7 + 1) for i in range(1000)]
    index = _offset_index(tmp_path / "index", entries)
    for sealed in (False, True):
        if sealed:
            index.seal()
            assert (tmp_path / "index").stat().st_size == 8000
        for target in (*range(990, 1300, 7), *range(4100, 3900, -11), 1000, 3997, 9999):
            expected = [i for i, (offset, _) in enumerate(entries) if offset <= target]
            assert index.number_at(target) == (expected[-1] if expected else -1)
        for target in range(0, 7500, 13):
            expected = [i for i, (_, position) in enumerate(entries) if position <= target]
            assert index.number_at_position(target) == (expected[-1] if expected else -1)
    index.open_memory()
    index.keep(10)
    index.append(9000, 9000)
    index.seal()
    assert len(index) == 11
    assert index.lookup(10) == (9000, 9000)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 50)), max_size=50))
def test_the_time_index_grows_in_both(entries: list[tuple[int, int]]) -> None:
    index = TimeIndex(FileCache(UnsyncedDisk(), 8).handle(Path("unused")), 100)
    index.start()
    offset, latest = 100, -1
    for timestamp, step in entries:
        offset += step
        latest = max(latest, timestamp)
        index.maybe_append(latest, offset)
    kept = [index.lookup(number) for number in range(len(index))]
    assert kept == sorted(set(kept))
    assert len({timestamp for timestamp, _ in kept}) == len(kept)
    if entries:
        assert index.last()[0] == latest


def test_implausible_entries_are_noticed(tmp_path: Path) -> None:
    index = _offset_index(tmp_path / "index", [(1005, 50), (1010, 90)])
    index.seal()
    assert index.is_sane(200)
    assert not index.is_sane(90)
    (tmp_path / "index").write_bytes((tmp_path / "index").read_bytes() + b"x")
    assert not index.is_sane(200)
