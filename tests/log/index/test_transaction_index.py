from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.in_process.log_home import UnsyncedDisk
from millstream.log.files import FileCache
from millstream.log.index.transaction_index import AbortedTransaction, TransactionIndex


def make(path: Path, base_offset: int = 0) -> TransactionIndex:
    return TransactionIndex(FileCache(UnsyncedDisk(), 4).handle(path), base_offset)


def filled(path: Path, entries: list[AbortedTransaction]) -> TransactionIndex:
    index = make(path)
    index.start()
    for entry in entries:
        index.append(entry)
    return index


ENTRIES = [
    AbortedTransaction(7, 0, 4, 2),
    AbortedTransaction(8, 2, 9, 10),
    AbortedTransaction(7, 12, 13, 14),
]


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    filled(path, ENTRIES).seal()
    assert path.read_bytes() == b"".join(struct.pack(">hqqqq", 0, *entry) for entry in ENTRIES)
    assert make(path).is_sane()


def test_without_aborted_transactions_there_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    index = filled(path, [])
    index.write_out()
    index.seal()
    assert not path.exists()
    index = make(path)
    index.open_memory()
    index.keep_below(0)
    assert (len(index), index.is_sane(), path.exists()) == (0, True, False)


def test_a_new_index_forgets_an_old_file_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    filled(path, ENTRIES).seal()
    filled(path, []).seal()
    assert len(make(path)) == 0


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize(
    ("start", "upper", "found", "goes_on"),
    [
        (0, 1, [0], False),  # the first entry's last stable offset is past the end
        (0, 3, [0, 1], False),
        (5, 20, [1, 2], True),
        (9, 12, [1], False),
        (10, 12, [], False),
        (10, 13, [2], False),
        (14, 20, [], True),
    ],
)
def test_transactions_that_overlap_a_range(
    tmp_path: Path, start: int, upper: int, found: list[int], goes_on: bool, is_sealed: bool
) -> None:
    index = filled(tmp_path / "0.txnindex", ENTRIES)
    if is_sealed:
        index.seal()
    result: list[AbortedTransaction] = []
    assert index.overlapping(start, upper, result) is goes_on
    assert result == [ENTRIES[number] for number in found]


@given(st.integers(0, 15), st.booleans())
def test_a_truncated_log_keeps_transactions_that_ended_before(
    tmp_path_factory: pytest.TempPathFactory, offset: int, is_written: bool
) -> None:
    path = tmp_path_factory.mktemp("cut") / "0.txnindex"
    index = filled(path, ENTRIES)
    if is_written:
        index.write_out()
    index.keep_below(offset)
    index.append(AbortedTransaction(1, 50, 60, 61))
    index.seal()
    kept = [entry for entry in ENTRIES if entry.last_offset < offset]
    again = make(path)
    assert [again.lookup(number) for number in range(len(again))] == [
        *kept,
        AbortedTransaction(1, 50, 60, 61),
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0" * 5,
        lambda data: b"\0\1" + data[2:],
        lambda data: data[34:68] + data[:34],
        lambda data: data[:18] + b"\xff" * 8 + data[26:],
        lambda data: b"\0" * len(data),
    ],
    ids=["short", "long", "version", "order", "negative", "zeros"],
)
def test_damage_is_noticed(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "0.txnindex"
    filled(path, ENTRIES).seal()
    path.write_bytes(damage(path.read_bytes()))
    assert not make(path).is_sane()


def test_markers_before_the_segment_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "5.txnindex"
    filled(path, ENTRIES).seal()
    assert not make(path, base_offset=5).is_sane()
