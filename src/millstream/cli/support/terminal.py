"""What people and scripts see: tables, JSON, notes.

Results go to standard output, everything else (notes, progress, errors) to standard error, so that
a pipe carries data only. rich is imported when a table or a progress bar is really shown.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from rich.console import Console

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

#: Where output is not a terminal there is no width to fit: tables are never folded then.
_PIPE_WIDTH = 10_000


def console() -> Console:
    """Standard output for tables."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def error_console() -> Console:
    """Standard error for progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: object) -> None:
    """One value, indented for a terminal and on one line for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    typer.echo(json.dumps(value, ensure_ascii=False, indent=indent))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    title: str | None = None,
) -> None:
    """Rows under headings; the columns named in `right` hold numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold cyan",
        pad_edge=False,
        show_edge=False,
    )
    for name in columns:
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*[Text(str(cell)) for cell in row])
    console().print(table)


def note(message: str) -> None:
    """A remark for the person at the terminal."""
    typer.echo(message, err=True)


def counted(count: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_bytes(size: float) -> str:
    """A size with the unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """The two units that matter: `2d 4h`, `3m 20s`, `0.8s`; or `unlimited`."""
    if math.isinf(seconds):
        return "unlimited"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    left = round(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def format_time(timestamp_ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC; out of a calendar's range, the number."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
