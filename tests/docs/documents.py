"""Finds the code and the commands in the project's documents. Pure.

Blocks in the languages `bash` and `python` are run. A comment before a block says how:

    <!-- run: skip REASON -->           not run
    <!-- run: until TEXT -->            interrupted once its output contains the text
    <!-- run: background TEXT -->       runs until the page ends; ready once it prints the text
    <!-- run: output -->                a block of text that the block before it must print

`<!-- run: stop -->` interrupts the background blocks. A Python block whose first line is a comment
with a file name (`# app.py`) is written to that file, for commands that follow. A comment
`<!-- run: python` or `<!-- run: bash`, with code in the lines up to `-->`, is run and not shown.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
#: The pages whose blocks are run: all but those that describe the project as it was.
PAGES = [
    REPOSITORY / "README.md",
    *(
        path
        for path in sorted((REPOSITORY / "docs").rglob("*.md"))
        if "decisions" not in path.parts and path.name != "file-map.md"
    ),
]
DOCUMENTS = [
    *PAGES,
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs" / "decisions").glob("*.md")),
]
_BLOCK = re.compile(
    r"(?:^ *<!-- run: (?P<mode>skip|until|background|output)[ ]?(?P<text>[^\n]*?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$"
    r"|^<!-- run: (?P<hidden>python|bash|stop)(?P<hidden_code>\n.*?^| )-->$",
    re.MULTILINE | re.DOTALL,
)
_FENCED = re.compile(r"^ *```([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}.+\n)+", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_COMMAND = re.compile(r"(?:^|[\s|(/])millstream\s+(?!import\b)(?=[a-z])(.*)")
_OR = re.compile(r"(?<=[a-z])\\?\|(?=[a-z])")
_ENDS = re.compile(r"\s[#|&;>]|\.\.\.|…")
_FILE_NAME = re.compile(r"# ([\w/-]+\.py)\n")


class Block(NamedTuple):
    """A code block of a document; `line` is the number of its first line."""

    document: str
    line: int
    language: str
    code: str
    #: How the block is run: a word of the module's docstring, or nothing.
    mode: str = ""
    text: str = ""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that a Python block is written to."""
        match = _FILE_NAME.match(self.code) if self.language == "python" else None
        return match[1] if match else None


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(REPOSITORY).as_posix()
    found = []
    for match in _BLOCK.finditer(text):
        code = "code" if match["hidden"] is None else "hidden_code"
        line = text.count("\n", 0, match.start(code)) + 1
        language = match["hidden"] or match["language"]
        text_of_block = textwrap.dedent(match[code])
        found.append(
            Block(name, line, language, text_of_block, match["mode"] or "", match["text"] or "")
        )
    return found


def runnable(path: Path) -> list[Block]:
    """Return the blocks of a page that are run, and those whose output is checked."""
    return [
        block
        for block in blocks(path)
        if block.mode != "skip"
        and (block.language in ("bash", "python", "stop") or block.mode == "output")
    ]


def python_blocks() -> list[Block]:
    return [block for path in DOCUMENTS for block in blocks(path) if block.language == "python"]


def commands() -> list[str]:
    """Return each `millstream ...` command in a document, without the program's name."""
    found: dict[str, None] = {}
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        shown = [match[2] for match in _FENCED.finditer(text) if match[1] not in ("python", "text")]
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
