"""`millstream cluster elect`: elect leaders on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded, say_error
from millstream.cli.support.option import RegexOption, YesOption, is_pattern, name_matcher
from millstream.cli.support.outcome import confirm
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, counted, note, print_json
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin
    from millstream.client.record import Partition

_UNCLEAN_HELP = (
    "Elect the preferred replicas; or, for partitions without an in-sync replica, a replica that"
    " may lack acknowledged records. These are lost, even if a replica that has them comes back."
)


@guarded
def elect(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC...]",
            help="The topics; * and ? match any characters.",
            autocompletion=complete_topics,
        ),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics.")] = False,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable."),
    ] = None,
    unclean: Annotated[bool, typer.Option("--unclean/--preferred", help=_UNCLEAN_HELP)] = False,
    regex: RegexOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Elect leaders: the preferred replicas, or with --unclean any live replica.

    A partition that needs no election stays unchanged.
    """
    if bool(topics) == all_topics:
        raise CommandError(ExitCode.USAGE, "name topics, or give --all-topics.")
    connection = Connection(servers, properties, timeout)
    admin = connection.open_admin()
    with connection.failing(), progress("reading the partitions"):
        names = admin.list_topics(internal=True)
        if not all_topics:
            names = _chosen(names, topics or (), regex)
        wanted = _partitions(connection, admin, names, partitions)
    if unclean and not yes:
        shown = names[0] if len(names) == 1 else counted(len(names), "topic")
        question = f"Let replicas of {shown} lead that may lack acknowledged records?"
        confirm(question, "an unclean election", "nothing was elected.")
    with progress("electing leaders"):
        rows = _elect(connection, admin, wanted, unclean)
    _report(rows, as_json)


def _chosen(topics: Sequence[str], patterns: Sequence[str], is_regex: bool) -> list[str]:
    """Return the topics that match. Raises CommandError for a pattern without a match."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = name_matcher([pattern], is_regex=is_regex)
        names = [name for name in topics if matches(name)]
        if not names:
            is_name = not is_regex and not is_pattern(pattern)
            what = (
                f"topic {pattern!r} does not exist" if is_name else f"no topic matches {pattern!r}"
            )
            raise CommandError(
                ExitCode.NOT_FOUND, f"{what}: `millstream topic list` shows all topics."
            )
        found |= dict.fromkeys(names)
    return list(found)


def _partitions(
    connection: Connection, admin: Admin, names: Sequence[str], numbers: Sequence[int] | None
) -> list[Partition]:
    """Return the partitions of the topics. Raises CommandError if a topic lacks a number."""
    from millstream.client.record import Partition

    described = admin.describe_topics(names, elr=False)
    found: list[Partition] = []
    for name in names:
        topic = described[name]
        if isinstance(topic, Exception):
            raise connection.failure(topic, topic=name)
        existing = [each.partition for each in topic.partitions]
        if not set(numbers or ()).issubset(existing):
            count = counted(len(existing), "partition")
            raise CommandError(ExitCode.NOT_FOUND, f"topic {name!r} has {count}, numbered from 0.")
        found += [Partition(name, number) for number in sorted(set(numbers or existing))]
    return found


def _elect(
    connection: Connection, admin: Admin, wanted: Sequence[Partition], unclean: bool
) -> list[dict[str, Any]]:
    with connection.failing():
        found = admin.elect_leaders(wanted, unclean=unclean)
    rows = []
    for each, outcome in sorted(found.items()):
        row: dict[str, Any] = {"topic": each.topic, "partition": each.partition}
        if isinstance(outcome, Exception):
            failure = connection.failure(outcome, topic=each.topic)
            row |= {"result": "failed", "error": str(failure)}
        else:
            row["result"] = "elected" if outcome else "not needed"
        rows.append(row)
    return rows


def _report(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
    failures = [row["error"] for row in rows if row["result"] == "failed"]
    if not as_json:
        for row in rows:
            if row["result"] == "elected":
                typer.echo(f"{row['topic']}-{row['partition']}: elected")
        if unneeded := sum(row["result"] == "not needed" for row in rows):
            note(f"{counted(unneeded, 'partition')} needed no election.")
    for failure in failures:
        say_error(failure)
    if failures:
        raise typer.Exit(ExitCode.FAILED)
