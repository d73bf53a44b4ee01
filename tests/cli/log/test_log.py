from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.records.builder import build_batch
from millstream.records.record import Record

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one partition: a segment of two batches and a checkpoint."""
    partition = tmp_path / "orders-0"
    partition.mkdir()
    records = [Record(n, 1_700_000_000_000 + n, b"k", b"value-%d" % n, []) for n in range(4)]
    (partition / f"{0:020d}.log").write_bytes(
        build_batch(records[:2]) + build_batch(records[2:], base_offset=2)
    )
    (partition / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (partition / "partition.metadata").write_text("version: 0\n")
    return tmp_path


def test_a_directory_is_searched(run: Run, data: Path) -> None:
    outcome = run("log", "dump", str(data), "--verify")
    assert outcome.code == 0, outcome
    assert outcome.out.count(str(data)) == 2
    assert "2 batches, 4 records, offsets 0 to 3" in outcome.out
    assert "epoch 0  start_offset 0" in outcome.out
    assert "value-" not in outcome.out


def test_deep_shows_records(run: Run, data: Path) -> None:
    outcome = run("log", "dump", str(data), "--deep")
    assert '3  2023-11-14T22:13:20.003Z  key "k"  value "value-3"' in outcome.out


def test_long_values_are_shortened_except_in_json(run: Run, data: Path) -> None:
    path = data / "orders-0" / f"{4:020d}.log"
    path.write_bytes(build_batch([Record(4, 0, None, b"x" * 5000, [])], base_offset=4))
    assert "(5,002 characters)" in run("log", "dump", str(path), "--deep").out
    assert "x" * 5000 in run("log", "dump", str(path), "--deep", "--json").out


def test_json_prints_one_row_per_line(run: Run, data: Path) -> None:
    outcome = run("log", "dump", str(data / "orders-0" / f"{0:020d}.log"), "--json", "--deep")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["type"] for row in rows].count("record") == 4
    assert all(row["file"].endswith(".log") for row in rows)
    quiet = run("log", "dump", str(data), "--json", "--quiet")
    assert {json.loads(line)["type"] for line in quiet.out.splitlines()} == {"summary"}


def test_quiet_prints_one_line_per_file(run: Run, data: Path) -> None:
    outcome = run("log", "dump", str(data), "--quiet")
    assert len(outcome.out.splitlines()) == 2


def test_damage_has_its_own_exit_code(run: Run, data: Path) -> None:
    path = data / "orders-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(content)
    outcome = run("log", "dump", str(data), "--verify")
    assert outcome.code == 6, outcome
    assert "DAMAGE at" in outcome.out
    assert outcome.error == f"error: damage found in {path}.\n"
    assert run("log", "dump", str(data)).code == 0


def test_paths_that_cannot_be_dumped(run: Run, data: Path) -> None:
    assert run("log", "dump", str(data / "nothing")).code == 3
    empty = data / "empty"
    empty.mkdir()
    assert run("log", "dump", str(empty)).code == 3
    assert run("log", "dump", str(data / "orders-0" / "partition.metadata")).code == 2
    assert run("log", "dump").code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(run: Run, data: Path) -> None:
    path = data / "orders-0" / f"{0:020d}.log"
    path.chmod(0)
    outcome = run("log", "dump", str(path))
    assert outcome.code == 1
    assert "cannot read" in outcome.error


def test_a_dump_into_a_pipe_shows_the_progress_of_all_files(
    run: Run, data: Path, progress_ends: list[str]
) -> None:
    log = data / "orders-0" / f"{0:020d}.log"
    size = log.stat().st_size + (log.parent / "leader-epoch-checkpoint").stat().st_size
    assert run("log", "dump", str(data)).code == 0
    assert progress_ends == [f"bytes read: {size:,} of {size:,}"]


def test_a_dump_on_a_terminal_shows_progress_only_if_it_is_quiet(
    run: Run, data: Path, progress_ends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cli.log.log._is_terminal", lambda: True)
    log = data / "orders-0" / f"{0:020d}.log"
    assert "COUNT" in run("log", "dump", str(log)).out
    assert progress_ends == []
    outcome = run("log", "dump", str(log), "--quiet")
    assert outcome.out.endswith("2 batches, 4 records, offsets 0 to 3\n")
    size = log.stat().st_size
    assert progress_ends == [f"bytes of {log.name} read: {size // 2:,} of {size:,}"]
