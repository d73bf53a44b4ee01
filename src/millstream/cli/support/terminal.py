"""Output of commands: tables, JSON and notes.

Results go to standard output. Notes, progress and errors go to standard error, so that a pipe
carries data only. rich is imported when a table or a progress bar is shown.
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

#: The table width without a terminal: tables are never folded there.
_PIPE_WIDTH = 10_000


def console() -> Console:
    """Return the console of standard output, for tables."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def error_console() -> Console:
    """Return the console of standard error, for progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: object) -> None:
    """Print one value, indented on a terminal and on one line in a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    typer.echo(json.dumps(value, ensure_ascii=False, indent=indent))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    title: str | None = None,
) -> None:
    """Print rows under headings; the columns in `right` are aligned to the right."""
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
    """Print a note on standard error."""
    typer.echo(message, err=True)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 message`, `2 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_bytes(size: float) -> str:
    """Return a size in the largest unit below it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: `2d 4h`, `3m 20s`, `0.8s`, `unlimited`."""
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
    """Return a timestamp as ISO 8601 in UTC, or the number if no calendar has that date."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
