"""`millstream group`: list, members, delete.

`describe` is in `cli/group/group_lag.py`, `reset-offsets` in `cli/group/group_reset.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.group.group_lag import describe
from millstream.cli.group.group_reset import reset_offsets
from millstream.cli.support.completion import complete_groups
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import RegexOption, YesOption, name_matcher
from millstream.cli.support.outcome import confirm_deletion, report
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import GroupListing, GroupMember
    from millstream.client.record import Partition

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")
app.command("describe", epilog=EXIT_CODES_HELP)(describe)
app.command("reset-offsets", epilog=EXIT_CODES_HELP)(reset_offsets)


# Copies of `GroupState` and `GroupType`: `--help` must not import the client.
class StateName(StrEnum):
    """The states of a group by their Kafka names."""

    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    EMPTY = "Empty"
    DEAD = "Dead"
    UNKNOWN = "Unknown"


class TypeName(StrEnum):
    """The protocols of groups."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    UNKNOWN = "Unknown"


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_groups(
    pattern: Annotated[
        str, typer.Argument(help="Show matching names; * and ? match any characters.")
    ] = "*",
    regex: RegexOption = False,
    states: Annotated[
        list[StateName] | None,
        typer.Option(
            "--state", case_sensitive=False, help="Only groups in this state. Repeatable."
        ),
    ] = None,
    types: Annotated[
        list[TypeName] | None,
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
    matches = name_matcher([pattern], is_regex=regex)
    connection = Connection(servers, properties, timeout)
    found, failure = _listed(connection, states or (), types or ())
    rows = [
        {"group": group.group_id, "state": str(group.state), "type": str(group.type)}
        for group in found
        if matches(group.group_id)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["GROUP", "STATE", "TYPE"], [list(row.values()) for row in rows])
    elif failure is None:
        note(
            "No groups yet." if pattern == "*" and not states and not types else "No groups match."
        )
    if failure is not None:
        raise failure


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def members(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_groups)],
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show a group's members and their partitions."""
    connection = Connection(servers, properties, timeout)
    with connection.failing(group=group):
        found = connection.open_admin().describe_group(group)
    rows = [_member(member) for member in found.members]
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
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP...", autocompletion=complete_groups)
    ],
    yes: YesOption = False,
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
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        deleted = connection.open_admin().delete_groups(names)
    outcomes = {
        name: None if error is None else connection.failure(error, group=name)
        for name, error in deleted.items()
    }
    fine = {ExitCode.NOT_FOUND: "absent"} if if_exists else {}
    report("group", outcomes, "deleted", fine, as_json=as_json)


def _listed(
    connection: Connection, states: Iterable[StateName], types: Iterable[TypeName]
) -> tuple[list[GroupListing], CommandError | None]:
    """Return the groups, and the failure if some brokers did not list theirs."""
    from millstream.client.admin import GroupState, GroupType, IncompleteListing

    with connection.failing():
        admin = connection.open_admin()
        try:
            return admin.list_groups(
                states=[GroupState(each.value) for each in states],
                types=[GroupType(each.value) for each in types],
            ), None
        except IncompleteListing as error:
            return error.groups, connection.failure(error)


def _member(member: GroupMember) -> dict[str, Any]:
    row: dict[str, Any] = {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "assignment": _assignment(member.assignment),
    }
    if member.target_assignment is not None:
        row["target_assignment"] = _assignment(member.target_assignment)
    return row


def _assignment(assignment: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the partitions of an assignment by topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in assignment:
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
