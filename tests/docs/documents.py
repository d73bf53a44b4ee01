"""Finds the code and the commands in the project's documents. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}.+\n)+", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_COMMAND = re.compile(r"(?:^|[\s|(/])millstream\s+(?=[a-z])(.*)")
_OR = re.compile(r"(?<=[a-z])\\?\|(?=[a-z])")
_ENDS = re.compile(r"\s[#|&;>]|\.\.\.|…")


class Block(NamedTuple):
    """A code block of a document; `line` is the number of its first line."""

    document: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def python_blocks() -> list[Block]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        for fence in _FENCED.finditer(text):
            if fence[1] == "python":
                line = text.count("\n", 0, fence.start(2)) + 1
                found.append(Block(str(path.relative_to(REPOSITORY)), line, fence[2]))
    return found


def commands() -> list[str]:
    """Return each `millstream ...` command in a document, without the program's name."""
    found: dict[str, None] = {}
    for path in DOCUMENTS:
        text = path.read_text()
        shown = [match[2] for match in _FENCED.finditer(text) if match[1] != "python"]
        plain = _FENCED.sub("", text)
        shown += [match[0] for match in _INDENTED.finditer(plain)]
        shown += [match[1] for match in _INLINE.finditer(plain)]
        for code in shown:
            found |= dict.fromkeys(_commands_in(code))
    return list(found)


def _commands_in(code: str) -> Iterator[str]:
    for line in code.replace("\\\n", " ").splitlines():
        match = _COMMAND.search(line)
        if match is None:
            continue
        yield from alternatives(_ENDS.split(_OR.sub("/", match[1]), maxsplit=1)[0])


def alternatives(command: str) -> list[str]:
    """Return the alternatives of a command: `dlq list/show --json` is two commands."""
    found: list[str] = [""]
    for word in words(command):
        choices = word.split("/") if re.fullmatch(r"[a-z/-]+", word) else [word]
        found = [f"{before} {shlex.quote(each)}".strip() for before in found for each in choices]
    return found


def words(command: str) -> list[str]:
    return shlex.split(command, comments=True)
