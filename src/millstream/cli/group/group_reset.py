"""`millstream group reset-offsets`: change the committed offsets of a group.

It changes nothing without --execute, and rejects a group with members: these would continue at
their positions and overwrite the new offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.group.group_admin import GroupAdmin, GroupState, active, state_of
from millstream.cli.group.offset_plan import (
    Aim,
    Key,
    Move,
    Scope,
    Target,
    parse_ago,
    parse_offsets,
    parse_scope,
    plan_moves,
)
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded, say_error
from millstream.cli.support.position import parse_moment
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT


@guarded
def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            help="Topics and partitions: orders, orders:3 or orders:0,4-7. Repeatable.",
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition with a committed offset.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first record.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, metavar="OFFSET", help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="To the first record at or after 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration",
            metavar="DURATION",
            help="To the first record since 10m, 2h, 1d or PT2H30M ago.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="COUNT", help="By this many offsets; back if negative."),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", metavar="CSV", help="To the offsets in a file of topic,partition,offset."
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the new offsets; by default only show them.")
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Change a group's committed offsets, so that it rereads or skips records.

    This is a dry run without --execute. A group with members is rejected. A group that does not
    exist is created, so that its first member starts at the new offsets.
    """
    asked = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-offset": to_offset,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--shift-by": shift_by,
        "--from-file": from_file,
    }
    target = _target({option: value for option, value in asked.items() if value is not None})
    scopes = _scopes(topics or (), all_topics, target)
    admin = GroupAdmin(Connection(servers, properties, timeout))
    _check_inactive(admin, group, all_topics)
    moves = _plan(admin, group, scopes, target)
    _remark_nearest(moves)
    failures = _execute(admin, group, moves) if execute else {}
    _report(group, moves, failures, execute, as_json)
    for failure in failures.values():
        say_error(str(failure))
    if failures:
        raise typer.Exit(next(iter(failures.values())).code)


def _target(asked: dict[str, bool | int | str | Path]) -> Target:
    if len(asked) != 1:
        raise CommandError(
            ExitCode.USAGE,
            "give exactly one of --to-earliest, --to-latest, --to-offset,"
            " --to-datetime, --by-duration, --shift-by and --from-file.",
        )
    ((option, value),) = asked.items()
    try:
        if isinstance(value, Path):
            return Target(Aim.FILE, offsets=_read_file(value))
        if option == "--by-duration":
            return Target(Aim.MOMENT, parse_ago(str(value), int(time.time() * 1000)))
        if option == "--to-datetime":
            return Target(Aim.MOMENT, parse_moment(str(value), int(time.time() * 1000)))
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{option} {error}.") from None
    return Target(Aim(option), int(value))


def _read_file(path: Path) -> dict[Key, int]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CommandError(ExitCode.NOT_FOUND, f"file {str(path)!r} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(ExitCode.FAILED, f"cannot read {str(path)!r}: {error}.") from None
    try:
        return parse_offsets(text.splitlines())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _scopes(topics: Iterable[str], all_topics: bool, target: Target) -> list[Scope] | None:
    """Return the requested partitions; None means every committed one."""
    try:
        scopes = [parse_scope(text) for text in topics]
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--topic {error}.") from None
    if target.aim is Aim.FILE:
        if scopes or all_topics:
            raise CommandError(
                ExitCode.USAGE,
                "--from-file names the partitions itself: leave out --topic and --all-topics.",
            )
        by_topic: dict[str, set[int]] = {}
        for topic, partition in target.offsets:
            by_topic.setdefault(topic, set()).add(partition)
        return [Scope(topic, frozenset(numbers)) for topic, numbers in by_topic.items()]
    if bool(scopes) == all_topics:
        raise CommandError(ExitCode.USAGE, "give either --topic TOPIC or --all-topics.")
    return scopes or None


def _check_inactive(admin: GroupAdmin, group: str, all_topics: bool) -> None:
    """Fail if the group has members, or if it does not exist and --all-topics is given."""
    found = admin.describe(group) if all_topics else admin.find(group)
    if found is None:
        note(f"Group {group!r} does not exist and would be created.")
    elif found.members or state_of(found) is not GroupState.EMPTY:
        raise active(group, state_of(found), len(found.members))


def _plan(admin: GroupAdmin, group: str, scopes: list[Scope] | None, target: Target) -> list[Move]:
    committed = admin.committed(group)
    keys = sorted(committed) if scopes is None else _expand(admin, scopes)
    ranges = admin.ranges(keys)
    by_time = admin.first_since(keys, target.value) if target.aim is Aim.MOMENT else {}
    try:
        return plan_moves(target, ranges, committed, by_time)
    except ValueError as error:
        raise CommandError(ExitCode.FAILED, f"{error}.") from None


def _expand(admin: GroupAdmin, scopes: list[Scope]) -> list[Key]:
    keys: set[Key] = set()
    for topic, wanted in scopes:
        existing = admin.partitions(topic)
        if wanted is not None and not wanted <= set(existing):
            count = counted(len(existing), "partition")
            missing = min(wanted - set(existing))
            raise CommandError(
                ExitCode.NOT_FOUND,
                f"topic {topic!r} has no partition {missing}: it has {count}, numbered from 0.",
            )
        keys.update((topic, partition) for partition in (wanted or existing))
    return sorted(keys)


def _remark_nearest(moves: list[Move]) -> None:
    moved = [move for move in moves if move.new != move.wanted]
    for move in moved[:3]:
        note(
            f"{move.topic}-{move.partition} does not have offset {move.wanted}:"
            f" {move.new} is the nearest."
        )
    if len(moved) > 3:
        note(f"The same for {counted(len(moved) - 3, 'more partition')}.")


def _execute(admin: GroupAdmin, group: str, moves: list[Move]) -> dict[Key, CommandError]:
    offsets = {(move.topic, move.partition): move.new for move in moves if move.changes}
    return admin.commit(group, offsets) if offsets else {}


def _report(
    group: str, moves: list[Move], failures: dict[Key, CommandError], execute: bool, as_json: bool
) -> None:
    results = [_result(move, failures, execute) for move in moves]
    if as_json:
        rows = [
            {
                "topic": move.topic,
                "partition": move.partition,
                "current_offset": move.current,
                "new_offset": move.new,
                "difference": move.difference,
                "result": result,
            }
            for move, result in zip(moves, results, strict=True)
        ]
        print_json({"group": group, "executed": execute, "partitions": rows})
        return
    if moves:
        right = ("PARTITION", "CURRENT", "NEW", "DIFFERENCE")
        cells = [
            [move.topic, move.partition, _or_dash(move.current), move.new, _signed(move), result]
            for move, result in zip(moves, results, strict=True)
        ]
        print_table(["TOPIC", *right, "RESULT"], cells, right=right)
    changed = sum(move.changes for move in moves)
    if not changed:
        note("Nothing to move.")
    elif not execute:
        note(f"A dry run: --execute moves {counted(changed, 'partition')}.")


def _result(move: Move, failures: dict[Key, CommandError], execute: bool) -> str:
    if not move.changes:
        return "stays"
    if not execute:
        return "would move"
    return "failed" if (move.topic, move.partition) in failures else "moved"


def _or_dash(offset: int | None) -> object:
    return "-" if offset is None else offset


def _signed(move: Move) -> str:
    return "-" if move.difference is None else f"{move.difference:+d}" if move.difference else "0"
