from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

HEAVY = (
    "confluent_kafka",
    "aiohttp",
    "uvloop",
    "prometheus_client",
    "millstream.broker",
    "cramjam",
    "matplotlib",
    "pandas",
    "pyarrow",
    "pyspark",
)


def test_version(run: Run) -> None:
    number = importlib.metadata.version("millstream")
    assert run("--version").out == f"millstream {number}\n"
    assert run("version").out.startswith(f"millstream {number}\n")
    assert json.loads(run("version", "--json").out)["millstream"] == number


@pytest.mark.parametrize(
    "command",
    [(), ("serve",), ("produce",), ("consume",), ("topic",), ("topic", "create"), ("log", "dump")],
)
def test_help(run: Run, command: tuple[str, ...]) -> None:
    outcome = run(*command, "--help")
    assert outcome.code == 0
    assert "Usage" in outcome.out


def test_help_names_the_exit_codes(run: Run) -> None:
    assert "Exit codes" in run("--help").out
    assert "Exit codes" in run("topic", "create", "--help").out


def test_wrong_usage(run: Run) -> None:
    assert run("no-such-command").code == 2
    assert run("consume").code == 2


def test_start_up_imports_nothing_heavy() -> None:
    program = "import sys, millstream.cli.main as cli; cli.build(); print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert not set(output.split()) & set(HEAVY)
