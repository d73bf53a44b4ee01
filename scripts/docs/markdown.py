"""Pieces of Markdown that the reference pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [_row(heads), _row(["---"] * len(heads)), *(_row(map(cell, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return text that fits a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return text as inline code; empty text stays empty."""
    if not text:
        return ""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
