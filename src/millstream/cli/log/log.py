"""`millstream log`: show the files of a data directory, also of a running broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, counted, format_bytes, format_time

if TYPE_CHECKING:
    from millstream.cli.log.dump import Row
    from millstream.cli.support.progress import Progress

app = typer.Typer(no_args_is_help=True, help="Show the files of a data directory.")

#: Heading, field and width of each column; a negative width means left-aligned.
_BATCH_COLUMNS: Final = (
    ("OFFSETS", "offsets", -15),
    ("COUNT", "count", 6),
    ("POSITION", "position", 10),
    ("SIZE", "size", 8),
    ("CODEC", "codec", -6),
    ("MAX TIMESTAMP", "max_timestamp", -24),
    ("EPOCH", "leader_epoch", 5),
    ("PRODUCER", "producer", -10),
    ("FLAGS", "flags", -5),
)
_VALUE_CHARACTERS_MAX: Final = 200
#: The rows that --quiet shows.
_QUIET_TYPES: Final = ("damage", "summary")


@app.callback()
def group() -> None:
    """Makes Typer treat `dump` as a subcommand, although it is the only one."""


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="A segment (.log), .index, .timeindex, .txnindex, .snapshot or checkpoint file,"
            " or a directory with such files.",
        ),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", "-d", help="Decode and show every record.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", "-v", help="Check CRCs, and index entries against their log."),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show only damage and a summary of each file.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the content of segments, indexes, snapshots and checkpoints.

    With --json it prints one object per line, with its file. The exit code is 6 if a file is
    damaged.
    """
    from millstream.cli.log.dump import dump_file

    damaged: list[Path] = []
    print_rows = _print_json if as_json else _print_file
    with closing(_watched(_files(paths), quiet)) as files:
        for path, watched in files:
            try:
                rows = watched(dump_file(path, deep=deep, verify=verify))
                print_rows(path, _collect_damage(rows, path, damaged), quiet)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise CommandError(
                    ExitCode.FAILED, f"cannot read {path}: {error.strerror or error}."
                ) from None
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise CommandError(ExitCode.DAMAGED, f"damage found in {damaged[0]}{more}.")


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the given files and the log files in the given directories, in order."""
    from millstream.cli.log.dump import file_kind

    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and file_kind(p) is not None)
            if not inside:
                raise CommandError(ExitCode.NOT_FOUND, f"{path} has no log files.")
            found += inside
        elif not path.exists():
            raise CommandError(ExitCode.NOT_FOUND, f"{path} does not exist.")
        elif file_kind(path) is None:
            raise CommandError(
                ExitCode.USAGE,
                f"{path} is not the name of a log file: expected <number>.log, .index,"
                " .timeindex, .txnindex, .snapshot, or a checkpoint.",
            )
        else:
            found.append(path)
    return found


def _watched(
    paths: Sequence[Path], quiet: bool
) -> Generator[tuple[Path, Callable[[Iterator[Row]], Iterable[Row]]]]:
    """Yield each file with a function that passes its rows on and shows the progress.

    Rows on a terminal show the progress themselves, and a bar would be printed among them. With
    `quiet` there are few rows: on a terminal they are held back while the bar is shown."""
    if _is_terminal():
        for path in paths:
            yield path, partial(_quiet_rows, path) if quiet else iter
        return
    sizes = [_size(path) for path in paths]
    start = 0
    with progress("bytes read", total=sum(sizes)) as shown:
        for path, size in zip(paths, sizes, strict=True):
            yield path, partial(_reported, shown, start)
            start += size
            shown.update(start)


def _quiet_rows(path: Path, rows: Iterator[Row]) -> list[Row]:
    """Return the damage and the summary of a file, and show the progress meanwhile."""
    with progress(f"bytes of {path.name} read", total=_size(path)) as shown:
        return [row for row in _reported(shown, 0, rows) if row["type"] in _QUIET_TYPES]


def _reported(shown: Progress, start: int, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows of a file. `start` is the size of all files before it."""
    for row in rows:
        if row["type"] == "batch":
            shown.update(start + row["position"])
        yield row


def _size(path: Path) -> int:
    """Return the size of a file, or 0 if it was deleted: reading it reports that."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _collect_damage(rows: Iterable[Row], path: Path, damaged: list[Path]) -> Iterator[Row]:
    for row in rows:
        if row["type"] == "damage" and path not in damaged[-1:]:
            damaged.append(path)
        yield row


def _print_json(path: Path, rows: Iterable[Row], quiet: bool) -> None:
    for row in rows:
        if not quiet or row["type"] in _QUIET_TYPES:
            typer.echo(json.dumps({"file": str(path), **row}, ensure_ascii=False))


def _print_file(path: Path, rows: Iterable[Row], quiet: bool) -> None:
    typer.secho(str(path), bold=True, nl=False)
    typer.echo(f"  {format_bytes(path.stat().st_size)}", nl=not quiet)
    has_heading = False
    for row in rows:
        kind = row["type"]
        if kind == "damage":
            text = f"  DAMAGE at {row['position']}: {row['message']}"
            typer.secho(text, fg="red", nl=not quiet)
        elif kind == "summary":
            typer.echo(f"  {_summary_text(row)}")
        elif not quiet:
            if not has_heading and kind == "batch":
                typer.secho("  " + _cells([(n, w) for n, _, w in _BATCH_COLUMNS]), fg="cyan")
                has_heading = True
            typer.echo(_row_text(row))


def _row_text(row: Row) -> str:
    if row["type"] == "batch":
        shown = {
            **row,
            "offsets": f"{row['base_offset']}-{row['last_offset']}",
            "max_timestamp": format_time(row["max_timestamp"]),
            "producer": _producer_text(row),
            "flags": _flags_text(row),
        }
        return "  " + _cells([(str(shown[field]), width) for _, field, width in _BATCH_COLUMNS])
    if row["type"] == "record":
        return f"    {_record_text(row)}"
    return "  " + "  ".join(
        f"{name} {format_time(value) if name == 'timestamp' else value}"
        for name, value in row.items()
        if name != "type"
    )


def _cells(cells: Iterable[tuple[str, int]]) -> str:
    return "  ".join(
        text.ljust(-width) if width < 0 else text.rjust(width) for text, width in cells
    ).rstrip()


def _producer_text(row: Row) -> str:
    if row["producer_id"] < 0:
        return "-"
    return f"{row['producer_id']}/{row['producer_epoch']} #{row['base_sequence']}"


def _flags_text(row: Row) -> str:
    flags = {
        "append-time": row["timestamp_type"] == "LogAppendTime",
        "transactional": row["transactional"],
        "control": row["control"],
        "compacted": row["delete_horizon_ms"] is not None,
    }
    return ",".join(name for name, is_set in flags.items() if is_set) or "-"


def _record_text(row: Row) -> str:
    start = f"{row['offset']}  {format_time(row['timestamp'])}"
    if "control" in row:
        return f"{start}  control: {row['control']}"
    headers = ", ".join(f"{h['key']}={_bytes_text(h, 'value')}" for h in row["headers"])
    return f"{start}  key {_bytes_text(row, 'key')}  value {_bytes_text(row, 'value')}" + (
        f"  headers {headers}" if headers else ""
    )


def _bytes_text(row: dict[str, Any], name: str) -> str:
    """Return text in quotes with escapes, or bytes as base64, both truncated."""
    if f"{name}_base64" in row:
        text = f"base64:{row[f'{name}_base64']}"
    elif row[name] is None:
        return "null"
    else:
        text = json.dumps(row[name], ensure_ascii=False)
    if len(text) <= _VALUE_CHARACTERS_MAX:
        return text
    return f"{text[:_VALUE_CHARACTERS_MAX]}... ({len(text):,} characters)"


def _summary_text(row: Row) -> str:
    if "entries" in row:
        return "no entries" if not row["entries"] else _entries_text(row["entries"])
    if not row["batches"]:
        return "no batches"
    batches = "1 batch" if row["batches"] == 1 else f"{row['batches']:,} batches"
    return (
        f"{batches}, {counted(row['records'], 'record')},"
        f" offsets {row['start_offset']} to {row['end_offset'] - 1}"
    )


def _entries_text(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"
