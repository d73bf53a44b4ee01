from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_a_new_project_says_what_to_do_next(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    made = run("pipeline", "init", str(folder), "-b", "broker:1")
    assert made.code == 0
    assert made.out.splitlines()[0] == str(folder / "spark-pipeline.yml")
    assert "topic create orders -b broker:1" in made.error
    assert "broker:1" in (folder / "spark-pipeline.yml").read_text()
    again = run("pipeline", "init", str(folder))
    assert again.code == 5
    assert "not empty" in again.error


@pytest.mark.parametrize("command", ["run", "validate"])
def test_where_there_is_no_project(run: Run, tmp_path: Path, command: str) -> None:
    failed = run("pipeline", command, str(tmp_path))
    assert failed.code == 3
    assert "millstream pipeline init" in failed.error


def test_a_wrong_project_file_is_a_wrong_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: a\n")
    failed = run("pipeline", "run", str(tmp_path))
    assert failed.code == 2
    assert "storage" in failed.error


def test_options_that_contradict_each_other(run: Run, tmp_path: Path) -> None:
    run("pipeline", "init", str(tmp_path / "shop"))
    both = ("--master", "local[1]", "--remote", "sc://127.0.0.1:1")
    failed = run("pipeline", "run", str(tmp_path / "shop"), *both)
    assert failed.code == 2
    assert "not both" in failed.error
    failed = run("pipeline", "run", "--full-refresh-all", "--refresh", "orders")
    assert failed.code == 2
    assert "--full-refresh-all" in failed.error


def test_without_spark_it_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    failed = run("pipeline", "run", str(tmp_path))
    assert failed.code == 1
    assert 'pip install "millstream[spark]"' in failed.error
