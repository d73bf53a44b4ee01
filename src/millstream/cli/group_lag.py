"""`millstream group describe`: how far a group has read, once or live.

Lag is in records' offsets: the end of a partition less what is committed. Compaction and
transactions leave gaps between offsets, so it is an upper bound there, and zero at the end.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any, Final

import typer

from millstream.cli.connection import (
    SERVERS_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.failure import guarded
from millstream.cli.group_admin import GroupAdmin, state_of, type_of
from millstream.cli.terminal import JsonOption, counted, print_json, print_table

#: To the top left corner, and nothing below it.
_CLEAR: Final = "\x1b[H\x1b[J"


@guarded
def describe(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            "-w",
            min=0.1,
            metavar="SECONDS",
            help="Look again so often, until Ctrl-C. With --json, one line each time.",
        ),
    ] = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show what a group has committed, how far behind it is, and who reads what."""
    admin = GroupAdmin(Connection(servers, properties, timeout))
    if watch is None:
        _show(_look(admin, group), as_json)
        return
    try:
        while True:
            row = _look(admin, group)
            if as_json:
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                if sys.stdout.isatty():
                    typer.echo(_CLEAR, nl=False)
                _show(row, as_json=False)
            sys.stdout.flush()
            time.sleep(watch)
    except KeyboardInterrupt:
        # The ordinary end of watching.
        return


def _look(admin: GroupAdmin, group: str) -> dict[str, Any]:
    found = admin.describe(group)
    committed = admin.committed(group)
    owners = {
        (entry.topic, entry.partition): member
        for member in found.members
        for entry in (member.assignment.topic_partitions if member.assignment else ())
    }
    keys = sorted(committed.keys() | owners.keys())
    ends = admin.ends(keys)
    partitions = []
    for key in keys:
        offset, end, owner = committed.get(key), ends.get(key), owners.get(key)
        known = offset is not None and end is not None
        partitions.append(
            {
                "topic": key[0],
                "partition": key[1],
                "committed_offset": offset,
                "end_offset": end,
                # A topic made anew may end before what was committed.
                "lag": max(0, (end or 0) - (offset or 0)) if known else None,
                "member_id": owner.member_id if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.host.removeprefix("/") if owner else None,
            }
        )
    return {
        "group": group,
        "state": str(state_of(found)),
        "type": str(type_of(found)),
        "assignor": found.partition_assignor or None,
        "coordinator": found.coordinator.id if found.coordinator else None,
        "members": len(found.members),
        "lag": sum(row["lag"] or 0 for row in partitions),
        "partitions": partitions,
    }


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    assignor = f", assignor {row['assignor']}" if row["assignor"] else ""
    typer.secho(row["group"], bold=True, nl=False)
    typer.echo(
        f"  {row['state']}, {row['type'].lower()} protocol{assignor},"
        f" {counted(row['members'], 'member')}, {counted(row['lag'], 'record')} behind"
    )
    if not row["partitions"]:
        return
    typer.echo()
    right = ("PARTITION", "COMMITTED", "END", "LAG")
    headings = ["TOPIC", *right, "MEMBER", "CLIENT", "HOST"]
    cells = [
        ["-" if cell is None else cell for cell in partition.values()]
        for partition in row["partitions"]
    ]
    print_table(headings, cells, right=right)
