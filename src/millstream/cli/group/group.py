"""`millstream group`: list, members, delete.

`describe` is in `cli/group/group_lag.py`, `reset-offsets` in `cli/group/group_reset.py`.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.group.group_admin import GroupAdmin, GroupState, GroupType
from millstream.cli.group.group_lag import describe
from millstream.cli.group.group_reset import reset_offsets
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, ExitCode, guarded, say_error
from millstream.cli.support.outcome import confirm_deletion, report
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from confluent_kafka.admin import MemberAssignment, MemberDescription

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")
app.command("describe", epilog=EXIT_CODES_HELP)(describe)
app.command("reset-offsets", epilog=EXIT_CODES_HELP)(reset_offsets)


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_groups(
    pattern: Annotated[
        str, typer.Argument(help="Show matching names; * and ? match any characters.")
    ] = "*",
    states: Annotated[
        list[GroupState] | None,
        typer.Option(
            "--state", case_sensitive=False, help="Only groups in this state. Repeatable."
        ),
    ] = None,
    types: Annotated[
        list[GroupType] | None,
        typer.Option(
            "--type", case_sensitive=False, help="Only groups of this protocol. Repeatable."
        ),
    ] = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List consumer groups."""
    admin = GroupAdmin(Connection(servers, properties, timeout))
    found, failures = admin.groups(states or (), types or ())
    rows = [
        {"group": group.group_id, "state": str(group.state), "type": str(group.type)}
        for group in found
        if fnmatch.fnmatchcase(group.group_id, pattern)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["GROUP", "STATE", "TYPE"], [list(row.values()) for row in rows])
    elif not failures:
        note(
            "No groups yet." if pattern == "*" and not states and not types else "No groups match."
        )
    for failure in failures:
        say_error(str(failure))
    if failures:
        raise typer.Exit(failures[0].code)


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def members(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show a group's members and their partitions."""
    found = GroupAdmin(Connection(servers, properties, timeout)).describe(group)
    rows = [_member(member) for member in sorted(found.members, key=lambda m: str(m.member_id))]
    if as_json:
        print_json(rows)
    elif rows:
        headings = ["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS", "ASSIGNMENT"]
        print_table(headings, [_cells(row) for row in rows], right=("PARTITIONS",))
    else:
        note(f"Group {group!r} has no members.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore groups that do not exist.")
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete groups without members, with their committed offsets."""
    names = list(dict.fromkeys(groups))
    if not yes:
        confirm_deletion(names, "its committed offsets", "their committed offsets")
    outcomes = GroupAdmin(Connection(servers, properties, timeout)).delete(names)
    fine = {ExitCode.NOT_FOUND: "absent"} if if_exists else {}
    report("group", outcomes, "deleted", fine, as_json=as_json)


def _member(member: MemberDescription) -> dict[str, Any]:
    row: dict[str, Any] = {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host.removeprefix("/"),
        "assignment": _assignment(member.assignment),
    }
    if member.target_assignment is not None:
        row["target_assignment"] = _assignment(member.target_assignment)
    return row


def _assignment(assignment: MemberAssignment | None) -> dict[str, list[int]]:
    """Return the partitions of an assignment by topic."""
    by_topic: dict[str, list[int]] = {}
    entries = assignment.topic_partitions if assignment else []
    for topic, partition in sorted((entry.topic, entry.partition) for entry in entries):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _cells(row: dict[str, Any]) -> list[object]:
    assignment: dict[str, list[int]] = row["assignment"]
    shown = _text(assignment)
    target = row.get("target_assignment")
    if target is not None and target != assignment:
        shown += f" (moving to {_text(target)})"
    return [
        row["member_id"],
        row["instance_id"] or "-",
        row["client_id"],
        row["host"],
        sum(map(len, assignment.values())),
        shown,
    ]


def _text(assignment: dict[str, list[int]]) -> str:
    parts = [f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in assignment.items()]
    return " ".join(parts) or "nothing"
