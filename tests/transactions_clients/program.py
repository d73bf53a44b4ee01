"""The commands of the client programs, and checks for the tools that they need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parents[1]
CACHE = REPOSITORY / ".cache"
JARS = f"{CACHE / 'jars'}/*"
JVM = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
#: Maven Central and npm may be unreachable; Debian's packages must be installed.
MAY_BE_MISSING = frozenset({"jars", "kafkajs"})


@dataclass(slots=True, frozen=True)
class Program:
    """A program: its command, to which arguments are appended, and the tools that it needs."""

    command: Sequence[str]
    tools: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def python_program(path: str) -> Program:
    """Return the Python program at `path`, relative to this folder."""
    return Program([sys.executable, str(FOLDER / path)])


def java_program(name: str, classes: Path) -> Program:
    """Return the program of a class that `compile_java` compiled into `classes`."""
    return Program([*JVM, "-cp", f"{classes}:{JARS}", name], ("java", "jars"))


def node_program(path: str) -> Program:
    """Return the Node program at `path`, relative to this folder."""
    environment = {"NODE_PATH": str(CACHE / "node" / "node_modules")}
    command = ["node", str(FOLDER / path)]
    return Program(command, ("node", "kafkajs"), environment)


def go_program(built: Path) -> Program:
    """Return the program of an executable that `build_go` created."""
    return Program([str(built)])


def unreachable_go(source: Path) -> str | None:
    """Return why a Go program cannot be built; None if Go and its modules are installed."""
    if shutil.which("go") is None:
        return "Go is not installed"
    done = subprocess.run(
        ["go", "mod", "download"], cwd=source, capture_output=True, text=True, timeout=240
    )
    return " ".join(done.stderr.split()) if done.returncode else None


def build_go(source: Path, built: Path) -> None:
    subprocess.run(["go", "build", "-o", str(built), "."], cwd=source, check=True, timeout=240)


def compile_java(classes: Path) -> None:
    sources = [str(path) for path in sorted(FOLDER.glob("*/*.java"))]
    subprocess.run(["javac", "-cp", JARS, "-d", str(classes), *sources], check=True, timeout=120)


def missing_tool(program: Program) -> tuple[str, str] | None:
    """Return the first missing tool and the reason."""
    record = CACHE / "tools.json"
    if not record.exists():
        script = REPOSITORY / "scripts" / "setup-test-tools"
        subprocess.run([sys.executable, str(script)], check=True)
    states: dict[str, dict[str, Any]] = json.loads(record.read_text())
    for tool in program.tools:
        if not states[tool]["available"]:
            return tool, str(states[tool]["reason"])
    return None
