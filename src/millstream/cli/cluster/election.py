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
    from confluent_kafka.admin import AdminClient, ClusterMetadata

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
    admin = connection.reach()[0]
    metadata = connection.metadata(admin)
    names = sorted(metadata.topics) if all_topics else _chosen(metadata, topics or (), regex)
    wanted = _partitions(metadata, names, partitions)
    if unclean and not yes:
        shown = names[0] if len(names) == 1 else counted(len(names), "topic")
        question = f"Let replicas of {shown} lead that may lack acknowledged records?"
        confirm(question, "an unclean election", "nothing was elected.")
    with progress("electing leaders"):
        rows = _elect(connection, admin, wanted, unclean)
    _report(rows, as_json)


def _chosen(metadata: ClusterMetadata, patterns: Sequence[str], is_regex: bool) -> list[str]:
    """Return the topics that match. Raises CommandError for a pattern without a match."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = name_matcher([pattern], is_regex=is_regex)
        names = [name for name in sorted(metadata.topics) if matches(name)]
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
    metadata: ClusterMetadata, names: Sequence[str], numbers: Sequence[int] | None
) -> list[tuple[str, int]]:
    """Return the partitions of the topics. Raises CommandError if a topic lacks a number."""
    for name in names:
        for number in numbers or ():
            if number not in metadata.topics[name].partitions:
                count = counted(len(metadata.topics[name].partitions), "partition")
                raise CommandError(
                    ExitCode.NOT_FOUND, f"topic {name!r} has {count}, numbered from 0."
                )
    return [
        (name, number)
        for name in names
        for number in sorted(numbers or metadata.topics[name].partitions)
    ]


def _elect(
    connection: Connection, admin: AdminClient, wanted: Sequence[tuple[str, int]], unclean: bool
) -> list[dict[str, Any]]:
    from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition

    future = admin.elect_leaders(
        ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED,
        [TopicPartition(*each) for each in wanted],
    )
    try:
        # librdkafka fails on every request timeout here, so the future gets the timeout.
        found = future.result(connection.timeout_s)
    except TimeoutError:
        raise CommandError(
            ExitCode.NO_CONNECTION,
            f"no election within {connection.timeout_s:g} s: raise --timeout.",
        ) from None
    except KafkaException as exception:
        raise connection.failure(exception, "cannot elect leaders") from None
    rows = []
    for each, failure in sorted(found.items(), key=lambda pair: (pair[0].topic, pair[0].partition)):
        row: dict[str, Any] = {"topic": each.topic, "partition": each.partition}
        if failure is None:
            row["result"] = "elected"
        elif failure.code() == KafkaError.ELECTION_NOT_NEEDED:
            row["result"] = "not needed"
        else:
            what = f"cannot elect a leader of {each.topic}-{each.partition}"
            reason = connection.failure(KafkaException(failure), what, each.topic)
            row |= {"result": "failed", "error": str(reason)}
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
