"""`millstream group reset-offsets`: change the committed offsets of a group.

It shows a preview, and changes nothing without a confirmation. It rejects a group with members:
these would continue at their positions and overwrite the new offsets.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.group.offset_plan import Scope, parse_ago, parse_offsets, parse_scope
from millstream.cli.support.client_failure import active_group
from millstream.cli.support.completion import complete_groups, complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded, say_error
from millstream.cli.support.option import DryRunOption, YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.position import parse_moment_option
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin, OffsetChange
    from millstream.client.record import Partition

_SHIFT: Final = "--shift-by"
_FILE: Final = "--from-file"


@guarded
def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_groups)],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            autocompletion=complete_topics,
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
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Change a group's committed offsets, so that it rereads or skips records.

    It shows the new offsets and asks. With --yes it does not ask; with --dry-run it only shows. A
    group with members is rejected. A group that does not exist is created, so that its first member
    starts at the new offsets.
    """
    asked = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-offset": to_offset,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        _SHIFT: shift_by,
        _FILE: from_file,
    }
    target = _target({option: value for option, value in asked.items() if value is not None})
    scopes = _scopes(topics or (), all_topics, from_file is not None)
    if dry_run and yes:
        raise CommandError(ExitCode.USAGE, "give --dry-run or --yes, not both.")
    connection = Connection(servers, properties, timeout)
    with connection.failing(group=group), progress(f"resetting {group}"):
        admin = connection.open_admin()
        _check_inactive(admin, group, all_topics)
        changes = _plan(connection, admin, group, scopes, target)
    _remark_nearest(changes)
    changed = sum(each.is_changed for each in changes)
    is_asked = bool(changed) and not (dry_run or yes or as_json) and _is_terminal()
    if is_asked:
        _report(group, changes, {}, is_executed=False, as_json=False, is_noted=False)
        question = f"Move {group} on {counted(changed, 'partition')}?"
        confirm(question, "changing offsets", "nothing was moved.")
    is_executed = yes or is_asked
    with connection.failing(group=group):
        failures = _execute(connection, admin, group, changes) if is_executed else {}
    _report(group, changes, failures, is_executed, as_json)
    for failure in failures.values():
        say_error(str(failure))
    if failures:
        raise typer.Exit(next(iter(failures.values())).code)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _target(asked: dict[str, bool | int | str | Path]) -> dict[str, Any]:
    """Return the arguments of `Admin.reset_group_offsets`."""
    if len(asked) != 1:
        raise CommandError(
            ExitCode.USAGE,
            "give exactly one of --to-earliest, --to-latest, --to-offset,"
            " --to-datetime, --by-duration, --shift-by and --from-file.",
        )
    ((option, value),) = asked.items()
    try:
        if isinstance(value, Path):
            return {"to": _read_file(value)}
        if option == "--by-duration":
            return {"duration": parse_ago(str(value))}
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{option} {error}.") from None
    if option == "--to-datetime":
        moment_ms = parse_moment_option(str(value), option)
        return {"to": dt.datetime.fromtimestamp(moment_ms / 1000, dt.UTC)}
    if option == _SHIFT:
        return {"shift_by": value}
    return {"to": value if option == "--to-offset" else option.removeprefix("--to-")}


def _read_file(path: Path) -> dict[Partition, int]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CommandError(ExitCode.NOT_FOUND, f"file {str(path)!r} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(ExitCode.FAILED, f"cannot read {str(path)!r}: {error}.") from None
    from millstream.client.record import Partition

    try:
        offsets = parse_offsets(text.splitlines())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return {Partition(*key): offset for key, offset in offsets.items()}


def _scopes(topics: Iterable[str], all_topics: bool, from_file: bool) -> list[Scope] | None:
    """Return the requested partitions; None means those with an offset."""
    try:
        scopes = [parse_scope(text) for text in topics]
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--topic {error}.") from None
    if from_file:
        if scopes or all_topics:
            raise CommandError(
                ExitCode.USAGE,
                "--from-file names the partitions itself: leave out --topic and --all-topics.",
            )
        return None
    if bool(scopes) == all_topics:
        raise CommandError(ExitCode.USAGE, "give either --topic TOPIC or --all-topics.")
    return scopes or None


def _check_inactive(admin: Admin, group: str, all_topics: bool) -> None:
    """Fail if the group has members, or if it does not exist and --all-topics is given."""
    from millstream.client.admin import GroupDescription

    found = admin.describe_groups([group])[group]
    if isinstance(found, GroupDescription):
        if found.is_active:
            raise active_group(group, str(found.state), len(found.members))
    elif all_topics or getattr(found, "name", "") != "GROUP_ID_NOT_FOUND":
        raise found
    else:
        note(f"Group {group!r} does not exist and would be created.")


def _plan(
    connection: Connection,
    admin: Admin,
    group: str,
    scopes: list[Scope] | None,
    target: Mapping[str, Any],
) -> list[OffsetChange]:
    from millstream.client.error import UsageError
    from millstream.client.record import Partition

    chosen: list[str | Partition] | None = None
    if scopes is not None:
        chosen = []
        for topic, numbers in scopes:
            chosen += [topic] if numbers is None else [Partition(topic, n) for n in numbers]
    try:
        return admin.reset_group_offsets(group, topics=chosen, dry_run=True, **target)
    except UsageError as error:
        # The arguments fit each other, but not the group's offsets.
        raise CommandError(ExitCode.FAILED, str(connection.failure(error))) from None


def _remark_nearest(changes: Sequence[OffsetChange]) -> None:
    moved = [each for each in changes if each.new != each.requested]
    for each in moved[:3]:
        note(
            f"{each.topic}-{each.partition} does not have offset {each.requested}:"
            f" {each.new} is the nearest."
        )
    if len(moved) > 3:
        note(f"The same for {counted(len(moved) - 3, 'more partition')}.")


def _execute(
    connection: Connection, admin: Admin, group: str, changes: Sequence[OffsetChange]
) -> dict[Partition, CommandError]:
    """Commit the new offsets. Return the failures by partition."""
    offsets = {each.key: each.new for each in changes if each.is_changed}
    return {
        each: connection.failure(outcome, group=group)
        for each, outcome in admin.alter_group_offsets(group, offsets).items()
        if outcome is not None
    }


def _report(
    group: str,
    changes: Sequence[OffsetChange],
    failures: Mapping[Partition, CommandError],
    is_executed: bool,
    as_json: bool,
    is_noted: bool = True,
) -> None:
    results = [_result(each, failures, is_executed) for each in changes]
    if as_json:
        rows = [
            {
                "topic": each.topic,
                "partition": each.partition,
                "current_offset": each.current,
                "new_offset": each.new,
                "difference": each.difference,
                "result": result,
            }
            for each, result in zip(changes, results, strict=True)
        ]
        print_json({"group": group, "executed": is_executed, "partitions": rows})
        return
    if changes:
        right = ("PARTITION", "CURRENT", "NEW", "DIFFERENCE")
        cells = [
            [each.topic, each.partition, _or_dash(each.current), each.new, _signed(each), result]
            for each, result in zip(changes, results, strict=True)
        ]
        print_table(["TOPIC", *right, "RESULT"], cells, right=right)
    changed = sum(each.is_changed for each in changes)
    if not changed:
        note("Nothing to move.")
    elif not is_executed and is_noted:
        note(f"Nothing was changed: --yes moves {counted(changed, 'partition')}.")


def _result(
    change: OffsetChange, failures: Mapping[Partition, CommandError], is_executed: bool
) -> str:
    if not change.is_changed:
        return "stays"
    if not is_executed:
        return "would move"
    return "failed" if change.key in failures else "moved"


def _or_dash(offset: int | None) -> object:
    return "-" if offset is None else offset


def _signed(change: OffsetChange) -> str:
    if change.difference is None:
        return "-"
    return f"{change.difference:+d}" if change.difference else "0"
