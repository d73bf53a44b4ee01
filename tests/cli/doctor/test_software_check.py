from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.doctor.finding import CheckState
from millstream.cli.doctor.software_check import check_etcd, check_java, check_kernels


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END' >&2\n{text}\nEND\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("3.5.5", CheckState.UNHEALTHY),
        ("3.5.0", CheckState.UNHEALTHY),
        ("3.5.6", CheckState.HEALTHY),
        ("3.4.23", CheckState.HEALTHY),
        ("new", CheckState.WARNING),
    ],
)
def test_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: CheckState
) -> None:
    program(tmp_path, "etcd", f"etcd Version: {version}")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert check_etcd().state is state


def test_etcd_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_etcd().state is CheckState.SKIPPED


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('openjdk version "17.0.15" 2025-04-15', CheckState.HEALTHY),
        ('openjdk version "21" 2025-04-15', CheckState.HEALTHY),
        ('java version "1.8.0_402"', CheckState.UNHEALTHY),
        ('openjdk version "11.0.2"', CheckState.UNHEALTHY),
    ],
)
def test_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, state: CheckState
) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "java", text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java().state is state


def test_java_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    missing = check_java()
    assert missing.state is CheckState.UNHEALTHY
    assert str(tmp_path) in missing.found


def test_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("millstream.cli.main", "millstream.cli.serve")
    monkeypatch.setattr("millstream.cli.doctor.software_check._KERNELS", names)
    slow = check_kernels()
    assert slow.state is CheckState.WARNING
    assert slow.found.startswith("2 of 2 run uncompiled")
