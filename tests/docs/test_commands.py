"""The commands in the documents exist, with the options shown."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import typer

from docs.documents import alternatives, commands, words
from millstream.cli.main import build

ROOT = typer.main.get_command(build())


def unknown_in(command: str) -> str | None:
    """Return the first part of a command that does not exist; None if all exist."""
    found: Any = ROOT
    options: set[str] = set()
    for word in words(command):
        if hasattr(found, "commands") and not word.startswith("-"):
            if word not in found.commands:
                return f"{found.name} has no command {word!r}"
            found = found.commands[word]
            names = ((*option.opts, *option.secondary_opts) for option in found.params)
            options = set(itertools.chain.from_iterable(names))
        elif word.startswith("--") and word.split("=")[0] not in options | {"--help", "--version"}:
            return f"{found.name} has no option {word!r}"
    return None


@pytest.mark.parametrize("command", commands())
def test_a_command_is_there(command: str) -> None:
    assert unknown_in(command) is None


def test_unknown_commands_and_options_are_found() -> None:
    assert len(commands()) > 20
    assert alternatives("dlq list/show --json") == ["dlq list --json", "dlq show --json"]
    assert unknown_in("topic creat orders") == "topic has no command 'creat'"
    assert unknown_in("topic create orders --partition 3") == "create has no option '--partition'"
    assert unknown_in("topic create orders --partitions 3") is None
