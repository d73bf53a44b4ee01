"""Checks of what is installed: compiled kernels, uvloop, Java for Spark, and etcd."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millstream.cli.doctor.finding import CheckScope, CheckState, Finding
from millstream.model.etcd_version import is_safe_etcd

_RUN_S_MAX: Final = 20.0
_JAVA_MIN: Final = 17
_KERNELS: Final = (
    "millstream.records.kernel",
    "millstream.records.arrow.arrow_decode",
    "millstream.records.arrow.arrow_encode",
    "millstream.client.consumer.record_kernel",
)


def software_findings() -> Iterator[Finding]:
    """Yield the finding of each check."""
    yield check_kernels()
    yield check_uvloop()
    yield check_java()
    yield check_etcd()


def _finding(check: str, state: CheckState, found: str, advice: str | None = None) -> Finding:
    return Finding(CheckScope.HOST, check, state, found, advice)


def check_kernels() -> Finding:
    """Check that the kernels for records are compiled. They work uncompiled, but slowly."""
    specs = {name: importlib.util.find_spec(name) for name in _KERNELS}
    origins = {name: (spec.origin or "") for name, spec in specs.items() if spec is not None}
    slow = sorted(name for name, origin in origins.items() if origin.endswith(".py"))
    if not slow:
        return _finding("kernels", CheckState.HEALTHY, f"all {len(origins)} are compiled")
    return _finding(
        "kernels",
        CheckState.WARNING,
        f"{len(slow)} of {len(origins)} run uncompiled: {', '.join(slow)}",
        "Install a wheel, or a C compiler and then Millstream again: records are processed slowly.",
    )


def check_uvloop() -> Finding:
    if importlib.util.find_spec("uvloop") is not None:
        return _finding("uvloop", CheckState.HEALTHY, "installed")
    advice = "Run `pip install uvloop`: brokers serve fewer requests without it."
    return _finding("uvloop", CheckState.WARNING, "not installed", advice)


def check_java() -> Finding:
    """Check the Java that Spark would start."""
    name = "java"
    if importlib.util.find_spec("pyspark") is None:
        return _finding(name, CheckState.SKIPPED, "Spark is not installed")
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    advice = (
        f"Install Java {_JAVA_MIN} or later and put it on PATH or in JAVA_HOME: Spark needs it."
    )
    text = _output(program, "-version")
    if text is None:
        where = f"{program} cannot be run" if home else "not installed"
        return _finding(name, CheckState.UNHEALTHY, where, advice)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    # Java 8 calls itself 1.8.
    number = 0 if match is None else int(match[2] or 0) if match[1] == "1" else int(match[1])
    if number < _JAVA_MIN:
        return _finding(name, CheckState.UNHEALTHY, f"version {number}", advice)
    return _finding(name, CheckState.HEALTHY, f"version {number}")


def check_etcd() -> Finding:
    """Check the etcd on PATH, which `millstream cluster up` would start."""
    name = "etcd"
    text = None if shutil.which("etcd") is None else _output("etcd", "--version")
    if text is None:
        return _finding(name, CheckState.SKIPPED, "not installed; only clusters of brokers need it")
    match = re.search(r"etcd Version: (\S+)", text)
    version = "unknown" if match is None else match[1]
    try:
        is_safe = is_safe_etcd(version)
    except ValueError:
        advice = "Install etcd 3.4.22, 3.5.6 or later."
        return _finding(name, CheckState.WARNING, f"version {version}", advice)
    if is_safe:
        return _finding(name, CheckState.HEALTHY, f"version {version}")
    return _finding(
        name,
        CheckState.UNHEALTHY,
        f"version {version} may lose data, and brokers reject it",
        "Upgrade etcd: 3.4.22 or later, or 3.5.6 or later.",
    )


def _output(*command: str) -> str | None:
    """Return what a program prints, or None if it cannot be run."""
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_RUN_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr
