"""`millstream group describe`: the committed offsets and the lag of a group, once or repeatedly.

Lag is a partition's end offset minus the committed offset. Compaction and transactions leave gaps
between offsets, so lag is an upper bound, and 0 at the end. Seconds behind are the age of the first
unread record. Headroom is the time until `retention.ms` may delete that record. A client cannot
predict deletion by `retention.bytes`. The lag of a partition whose leader does not respond is
unknown, and shown as unknown.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from millstream.cli.group.group_admin import GroupAdmin, state_of, type_of
from millstream.cli.group.offset_plan import Key
from millstream.cli.group.unread import FirstUnread, UnreadReader
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import guarded
from millstream.cli.support.position import Range
from millstream.cli.support.terminal import (
    JsonOption,
    counted,
    format_duration,
    note,
    print_json,
    print_table,
)
from millstream.cli.support.topic_config import Retention
from millstream.model.bootstrap import SERVERS_DEFAULT

#: Moves the cursor to the top left corner and clears the screen below.
_CLEAR: Final = "\x1b[H\x1b[J"
_UNLIMITED: Final = math.inf


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
            help="Refresh this often, until Ctrl-C. With --json, print one line each time.",
        ),
    ] = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show a group's committed offsets, its lag, and the member of each partition."""
    connection = Connection(servers, properties, timeout)
    admin, unread = GroupAdmin(connection), UnreadReader(connection)
    try:
        if watch is None:
            _show(_describe(admin, unread, group), as_json)
        else:
            _watch(admin, unread, group, watch, as_json)
    except KeyboardInterrupt:
        if watch is None:
            raise
        # Ctrl-C is the normal end of --watch.
    finally:
        unread.close()


def _watch(
    admin: GroupAdmin, unread: UnreadReader, group: str, seconds: float, as_json: bool
) -> None:
    while True:
        row = _describe(admin, unread, group)
        if as_json:
            typer.echo(json.dumps(_finite(row), ensure_ascii=False))
        else:
            if sys.stdout.isatty():
                typer.echo(_CLEAR, nl=False)
            _show(row, as_json=False)
        sys.stdout.flush()
        time.sleep(seconds)


def _describe(admin: GroupAdmin, unread: UnreadReader, group: str) -> dict[str, Any]:
    found = admin.describe(group)
    committed = admin.committed(group)
    owners = {
        (entry.topic, entry.partition): member
        for member in found.members
        for entry in (member.assignment.topic_partitions if member.assignment else ())
    }
    keys = sorted(committed.keys() | owners.keys())
    ranges = admin.known_ranges(keys)
    behind = _behind(committed, ranges)
    firsts = unread.first_unread(behind)
    retentions = admin.retentions({topic for topic, _ in behind})
    partitions = []
    for key in keys:
        owner = owners.get(key)
        lag = _lag(key, committed, ranges, firsts, retentions)
        partitions.append(
            {
                "topic": key[0],
                "partition": key[1],
                "committed_offset": committed.get(key),
                "end_offset": ranges[key].end if key in ranges else None,
                **lag,
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
        "lag_seconds": max(_known(partitions, "lag_seconds"), default=None),
        "headroom_seconds": min(_known(partitions, "headroom_seconds"), default=None),
        "unknown_partitions": sum(
            row["committed_offset"] is not None and row["lag"] is None for row in partitions
        ),
        "partitions": partitions,
        "limited_by_size": sorted(
            topic for topic, retention in retentions.items() if retention.size_bytes is not None
        ),
    }


def _behind(committed: Mapping[Key, int], ranges: Mapping[Key, Range]) -> dict[Key, int]:
    """Return the first unread offset of each partition that is not read to its end."""
    starts = {
        key: max(offset, ranges[key].start) for key, offset in committed.items() if key in ranges
    }
    return {key: offset for key, offset in starts.items() if offset < ranges[key].end}


def _lag(
    key: Key,
    committed: Mapping[Key, int],
    ranges: Mapping[Key, Range],
    firsts: Mapping[Key, FirstUnread],
    retentions: Mapping[str, Retention],
) -> dict[str, Any]:
    """Return the lag in records and seconds, and the headroom; None where unknown."""
    if key not in committed or key not in ranges:
        return {"lag": None, "lag_seconds": None, "headroom_seconds": None}
    first = firsts.get(key)
    if first is None or first.is_nothing:
        return {"lag": 0, "lag_seconds": 0.0, "headroom_seconds": _UNLIMITED}
    start, end = ranges[key]
    seconds = None
    if first.timestamp_ms is not None:
        seconds = max(time.time() - first.timestamp_ms / 1000, 0)
    is_deleting = committed[key] < start
    return {
        "lag": end - max(committed[key], start),
        "lag_seconds": seconds,
        "headroom_seconds": 0.0 if is_deleting else _headroom(seconds, retentions.get(key[0])),
    }


def _headroom(age_seconds: float | None, retention: Retention | None) -> float | None:
    if retention is None:
        return None
    if retention.ms is None:
        return _UNLIMITED
    return None if age_seconds is None else max(retention.ms / 1000 - age_seconds, 0.0)


def _known(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


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
    if finite["headroom_seconds"] == _UNLIMITED:
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
