"""Java for tests: Kafka's jars and the compiler for Java programs of this tree.

`scripts/setup-test-tools` fetches the jars and records missing ones in `.cache/tools.json`. A test
that needs missing jars is skipped with the reason.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache"
#: Sets of jars by their names in `tools.json`.
FOLDERS = {"jars": CACHE / "jars", "kafka-applications": CACHE / "kafka-applications"}
#: For programs that run for seconds: a small heap and no optimising compiler.
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_COMPILE_SECONDS_MAX = 120


def require_java(*sets: str) -> None:
    """Fail the calling test without a JDK; skip it without one of these sets of jars."""
    states = _states(("java", *sets))
    if not states["java"]["available"]:
        pytest.fail(f"java is not available: {states['java']['reason']}")
    for name in sets:
        if not states[name]["available"]:
            pytest.skip(f"{name} is not available: {states[name]['reason']}")


def _states(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    record = CACHE / "tools.json"
    if not record.exists() or not set(names) <= set(json.loads(record.read_text())):
        script = REPOSITORY / "scripts" / "setup-test-tools"
        subprocess.run([sys.executable, str(script)], check=True)
    states: dict[str, dict[str, Any]] = json.loads(record.read_text())
    return states


def class_path(*sets: str, classes: Path | None = None) -> str:
    parts = [f"{FOLDERS[name]}/*" for name in sets]
    return ":".join([str(classes), *parts] if classes else parts)


def compile_java(source: Path, classes: Path, *sets: str) -> None:
    """Compile one source file against these sets of jars into `classes`, unless an earlier run has
    compiled the same."""
    jars = [jar.name for name in sets for jar in sorted(FOLDERS[name].glob("*.jar"))]
    digest = hashlib.sha256(source.read_bytes() + repr(jars).encode()).hexdigest()[:16]
    kept = CACHE / "classes" / f"{source.stem}-{digest}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            fresh = Path(folder) / "classes"
            fresh.mkdir()
            subprocess.run(
                ["javac", "-cp", class_path(*sets), "-d", str(fresh), str(source)],
                check=True,
                timeout=_COMPILE_SECONDS_MAX,
            )
            try:
                fresh.rename(kept)
            except OSError:
                # Another worker was first.
                assert kept.is_dir()
    shutil.copytree(kept, classes, dirs_exist_ok=True)


def log_to_file(folder: Path) -> str:
    """Return the JVM flag that writes Kafka's warnings to `kafka-warn.log` in `folder`."""
    settings = folder / "log4j2.properties"
    settings.write_text(
        "appender.file.type = File\n"
        "appender.file.name = file\n"
        f"appender.file.fileName = {folder / 'kafka-warn.log'}\n"
        "appender.file.layout.type = PatternLayout\n"
        "appender.file.layout.pattern = [%d] %p %m (%c)%n%throwable\n"
        "rootLogger.level = WARN\n"
        "rootLogger.appenderRef.file.ref = file\n"
    )
    return f"-Dlog4j2.configurationFile={settings}"
