"""Completion as shells request it: a process with the words in its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

_PROGRAM = str(Path(sys.executable).with_name("millstream"))


def complete(shell: str, *words: str, servers: str) -> list[str]:
    """Return what a shell would offer for the last word."""
    line = " ".join(["millstream", *words])
    environment = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = subprocess.run(
        [_PROGRAM],
        env={
            **os.environ,
            **environment,
            "_MILLSTREAM_COMPLETE": f"complete_{shell}",
            "MILLSTREAM_BOOTSTRAP_SERVERS": servers,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.replace('"', " ").replace("\t", " ").split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_topics_groups_and_brokers(ask: Run, broker: str, topic: str, shell: str) -> None:
    assert topic in complete(shell, "cluster", "partitions", topic[:-1], servers=broker)
    assert "1" in complete(shell, "broker", "decommission", "", servers=broker)


def test_groups(ask: Run, broker: str, topic: str) -> None:
    group = f"{topic}-group"
    assert ask("produce", topic, "x").code == 0
    assert ask("consume", topic, "--group", group, "-B", "-n", "1").code == 0
    assert group in complete("bash", "dlq", "list", topic, "--group", topic, servers=broker)


def test_profiles(run: Run) -> None:
    assert run("profile", "create", "production").code == 0
    found = complete("bash", "topic", "list", "--profile", "pro", servers="127.0.0.1:1")
    assert found == ["production"]


def test_without_a_broker_nothing_is_offered_and_nothing_printed() -> None:
    assert complete("bash", "cluster", "elect", "", servers="127.0.0.1:1") == []


def test_installation_is_in_the_help(run: Run) -> None:
    assert "--install-completion" in run("--help").out
