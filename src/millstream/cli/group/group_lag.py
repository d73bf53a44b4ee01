"""`millstream group describe`: prints the offsets and the lag of a group, once or repeatedly."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any, Final

import typer

from millstream.cli.group.lag_reader import UNLIMITED, LagReader
from millstream.cli.support.completion import complete_groups
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import guarded
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import Duration, duration_option
from millstream.cli.support.terminal import (
    JsonOption,
    counted,
    format_duration,
    note,
    print_json,
    print_table,
)
from millstream.model.bootstrap import SERVERS_DEFAULT

#: Moves the cursor to the top left corner and clears the screen below.
_CLEAR: Final = "\x1b[H\x1b[J"


@guarded
def describe(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_groups)],
    watch: Annotated[
        Duration | None,
        duration_option(
            "--watch",
            "-w",
            minimum="100ms",
            help="Refresh this often (2s), until Ctrl-C. With --json, print one line each time.",
        ),
    ] = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show a group's committed offsets, its lag, and the member of each partition."""
    connection = Connection(servers, properties, timeout)
    lag_reader = LagReader(connection)
    try:
        if watch is None:
            with progress(f"reading the offsets of {group}"):
                row = lag_reader.describe(group)
            _show(row, as_json)
        else:
            _watch(lag_reader, group, watch, as_json)
    except KeyboardInterrupt:
        if watch is None:
            raise
        # Ctrl-C is the normal end of --watch.
    finally:
        lag_reader.close()


def _watch(lag_reader: LagReader, group: str, seconds: float, as_json: bool) -> None:
    while True:
        row = lag_reader.describe(group)
        if as_json:
            typer.echo(json.dumps(_finite(row), ensure_ascii=False))
        else:
            if sys.stdout.isatty():
                typer.echo(_CLEAR, nl=False)
            _show(row, as_json=False)
        sys.stdout.flush()
        time.sleep(seconds)


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(_finite(row))
        return
    assignor = f", assignor {row['assignor']}" if row["assignor"] else ""
    age = f" by {format_duration(row['lag_seconds'])}" if row["lag_seconds"] else ""
    typer.secho(row["group"], bold=True, nl=False)
    typer.echo(
        f"  {row['state']}, {row['type'].lower()} protocol{assignor},"
        f" {counted(row['members'], 'member')}, {counted(row['lag'], 'record')} behind{age}"
    )
    if row["unknown_partitions"]:
        note(
            f"The lag of {counted(row['unknown_partitions'], 'partition')} is unknown: no leader"
            " responds. See `millstream cluster partitions --unhealthy`."
        )
    if not row["partitions"]:
        return
    typer.echo()
    right = ("PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "HEADROOM")
    headings = ["TOPIC", *right, "MEMBER", "CLIENT", "HOST"]
    print_table(headings, [_cells(partition) for partition in row["partitions"]], right=right)
    for topic in row["limited_by_size"]:
        note(
            f"{topic} also has retention.bytes, which may delete records sooner:"
            " see the broker's metrics."
        )


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity, which JSON lacks, by null."""
    finite = dict(row)
    if finite["headroom_seconds"] == UNLIMITED:
        finite["headroom_seconds"] = None
    if "partitions" in finite:
        finite["partitions"] = [_finite(partition) for partition in finite["partitions"]]
    return finite


def _cells(partition: dict[str, Any]) -> list[object]:
    shown = dict(partition)
    for name in ("lag_seconds", "headroom_seconds"):
        if shown[name] is not None:
            shown[name] = format_duration(shown[name])
    if not shown["lag"]:
        shown["headroom_seconds"] = None
    return ["-" if cell is None else cell for cell in shown.values()]
