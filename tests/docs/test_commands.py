"""The commands in the documents exist, with the options shown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from docs.documents import REPOSITORY, alternatives, commands, words
from millstream.cli.main import build
from millstream.cli.support.option import RENAMED

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


def all_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(command, (*path, name))
        elif not command.hidden:
            yield " ".join((*path, name))


def test_the_table_of_commands_has_all_of_them() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "running.md").read_text(encoding="utf-8")
    table = page.partition("\n## Commands\n")[2].partition("\n## ")[0]
    rows = re.findall(r"`millstream ([^`]+)`", table)
    listed = [each for row in rows for each in alternatives(row.replace("\\|", "/"))]
    assert sorted(listed) == sorted(all_commands(ROOT))


@pytest.mark.parametrize("name", RENAMED)
def test_the_migration_page_has_the_earlier_spellings_of_options(name: str) -> None:
    page = (REPOSITORY / "docs" / "migrating-to-1.0.md").read_text(encoding="utf-8")
    rows = page.partition("\n## Commands\n")[2].partition("\n## ")[0].splitlines()
    earlier = [row.split(" | ")[0] for row in rows if row.startswith("| ")]
    assert any(name in words(cell.replace("`", " ").strip("| ")) for cell in earlier)
