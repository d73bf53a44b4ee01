"""Each question of finding-your-way leads to a name in a file that ARCHITECTURE.md names."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
QUESTIONS_MIN = 20


class Row(NamedTuple):
    question: str
    file: str
    start: str


def rows() -> list[Row]:
    text = (ROOT / "docs" / "finding-your-way.md").read_text()
    return [
        Row(*found) for found in re.findall(r"^\| (.+\?) \| `(.+?)` \| `(.+?)` \|$", text, re.M)
    ]


def test_there_are_twenty_questions_or_more_and_none_twice() -> None:
    assert len(rows()) >= QUESTIONS_MIN
    assert len({row.question for row in rows()}) == len(rows())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.file)
def test_the_architecture_leads_to_the_file_and_the_file_has_the_name(row: Row) -> None:
    assert f"`{row.file}`" in (ROOT / "ARCHITECTURE.md").read_text()
    tree = ast.parse((ROOT / "src" / "millstream" / row.file).read_text())
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    assert row.start in {node.name for node in ast.walk(tree) if isinstance(node, definitions)}
