"""Spark in a virtual environment that is not activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SESSION = """
from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    .getOrCreate()
)
source = session.read.format("millstream").option("kafka.bootstrap.servers", "127.0.0.1:9")
print("columns", source.option("subscribe", "t").load().columns)
"""


def environment(folder: Path, **own: str) -> dict[str, str]:
    """Return an environment whose `python3` does not have Millstream."""
    (folder / "python3").symlink_to("/bin/false")
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    path = f"{folder}{os.pathsep}{os.defpath}"
    return {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **own}


def run(folder: Path, program: str, **own: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment(folder, **own),
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_the_source_is_found_without_an_activated_environment(tmp_path: Path) -> None:
    found = run(tmp_path, "import millstream.spark\n" + _SESSION)
    assert found.returncode == 0, found.stderr[-3000:]
    assert "columns ['key', 'value', 'topic'," in found.stdout


@pytest.mark.parametrize("chosen", [None, "/usr/bin/python3"])
def test_the_import_keeps_a_python_that_is_set(tmp_path: Path, chosen: str | None) -> None:
    own = {} if chosen is None else {"PYSPARK_PYTHON": chosen}
    program = "import os, millstream.spark; print(os.environ['PYSPARK_PYTHON'])"
    assert run(tmp_path, program, **own).stdout.strip() == (chosen or sys.executable)
