"""The commands of the clients that these tests run.

A client that needs Maven Central or npm is skipped if it is missing, with the reason that
scripts/setup-test-tools recorded. Any other missing tool fails the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from group_clients.member import CACHE, CLIENTS, Client, Start, build_java

_MAY_BE_MISSING = {"jars", "kafkajs"}


@pytest.fixture
def start_of(tmp_path: Path, command_of: Callable[[Client], list[str]]) -> Callable[[str], Start]:
    """Return a function that maps a client's name to the way to start its members."""
    return lambda name: Start(CLIENTS[name], command_of(CLIENTS[name]), tmp_path)


@pytest.fixture(scope="session")
def command_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Client], list[str]]:
    """Return a function that maps a client to the command of its member.

    The function skips or fails the test if a tool is missing."""
    record = CACHE / "tools.json"
    if not record.exists():
        setup = CACHE.parent / "scripts" / "setup-test-tools"
        subprocess.run([sys.executable, str(setup)], check=True)
    tools: dict[str, dict[str, Any]] = json.loads(record.read_text())
    built: Path = tmp_path_factory.mktemp("java")

    def find(client: Client) -> list[str]:
        for tool in client.needs:
            if not tools[tool]["available"]:
                end = pytest.skip if tool in _MAY_BE_MISSING else pytest.fail
                end(f"{tool} is not available: {tools[tool]['reason']}")
        if client.program.endswith(".java") and not (built / "Member.class").exists():
            build_java(built)
        return client.command(built)

    return find
