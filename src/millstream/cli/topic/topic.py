"""`millstream topic`: create, list, alter, delete.

The other commands of topics have a module each. A command with several topics does what it can,
reports the failures, and exits with the code of the first failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
    parse_pairs,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import RegexOption, YesOption, name_matcher
from millstream.cli.support.outcome import confirm_deletion, report
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.cli.topic.hot import hot
from millstream.cli.topic.topic_description import describe
from millstream.cli.topic.topic_grow import grow
from millstream.cli.topic.topic_move import move
from millstream.cli.topic.topic_records import delete_records
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Outcome, TopicDescription

app = typer.Typer(
    no_args_is_help=True, help="Create, list, describe, alter, grow, move and delete topics."
)
app.command("describe", epilog=EXIT_CODES_HELP)(describe)
app.command("hot", epilog=EXIT_CODES_HELP)(hot)
app.command("grow", epilog=EXIT_CODES_HELP)(grow)
app.command("move", epilog=EXIT_CODES_HELP)(move)
app.command("delete-records", epilog=EXIT_CODES_HELP)(delete_records)

ConfigsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        help="A topic config, such as retention.ms=3600000. Repeatable.",
    ),
]


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the broker's setting.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="Default: the broker's setting."),
    ] = None,
    configs: ConfigsOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Ignore topics that exist.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Let the broker validate the request without creating topics."
        ),
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Create topics, all with the same settings."""
    from millstream.client.admin import NewTopic

    settings = parse_pairs(configs or (), "--config")
    wanted = [
        NewTopic(
            name=name,
            partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config=settings,
        )
        for name in dict.fromkeys(topics)
    ]
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        outcomes = connection.open_admin().create_topics(wanted, validate_only=dry_run)
    fine = {ExitCode.EXISTS: "exists"} if if_not_exists else {}
    done = "would be created" if dry_run else "created"
    report("topic", _failures(connection, outcomes), done, fine, as_json=as_json)


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_topics(
    pattern: Annotated[
        str, typer.Argument(help="Show matching names; * and ? match any characters.")
    ] = "*",
    regex: RegexOption = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also show internal topics (__*).")
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List topics."""
    from millstream.client.admin import TopicDescription

    matches = name_matcher([pattern], is_regex=regex)
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        admin = connection.open_admin()
        names = [name for name in admin.list_topics(internal=internal) if matches(name)]
        found = admin.describe_topics(names, elr=False)
    # A topic that was deleted meanwhile has no description.
    rows = [_row(topic) for topic in found.values() if isinstance(topic, TopicDescription)]
    if as_json:
        print_json(rows)
    elif rows:
        headings = ["TOPIC", "PARTITIONS", "REPLICAS", "NO LEADER", "OUT OF SYNC"]
        print_table(headings, [list(row.values()) for row in rows], right=headings[1:])
    else:
        note(f"No topics match {pattern!r}." if pattern != "*" else "No topics yet.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def alter(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    configs: ConfigsOption = None,
    deleted_configs: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config",
            "-d",
            metavar="KEY",
            help="Reset this config to the broker's default. Repeatable.",
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="The new, larger number of partitions."),
    ] = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Change a topic's configs, or give it more partitions.

    More partitions change the partition of keys: new records of a key may go to another partition
    than its older records. `millstream topic grow --keep-order` keeps the order of keys.
    """
    from millstream.client.admin import ConfigResource

    settings = parse_pairs(configs or (), "--config")
    removed = sorted(set(deleted_configs or ()))
    if not settings and not removed and partitions is None:
        raise CommandError(
            ExitCode.USAGE, "nothing to change: give --config, --delete-config or --partitions."
        )
    if both := [key for key in removed if key in settings]:
        raise CommandError(ExitCode.USAGE, f"{both[0]} is both set and deleted: choose one.")
    connection = Connection(servers, properties, timeout)
    with connection.failing(topic=topic):
        admin = connection.open_admin()
        admin.alter_config(ConfigResource.topic(topic), {**settings, **dict.fromkeys(removed)})
        if partitions is not None:
            admin.create_partitions(topic, partitions)
    changes = [f"{key}={value}" for key, value in settings.items()]
    changes += [f"{key} reset to default" for key in removed]
    changes += [] if partitions is None else [counted(partitions, "partition")]
    if as_json:
        print_json({"topic": topic, "result": "altered", "changes": changes})
    else:
        typer.echo(f"{topic}: {', '.join(changes)}")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def delete(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics)
    ],
    yes: YesOption = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete topics and all their records."""
    names = list(dict.fromkeys(topics))
    if not yes:
        confirm_deletion(names, "all records in it", "all records in them")
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        outcomes = connection.open_admin().delete_topics(names)
    fine = {ExitCode.NOT_FOUND: "absent"} if if_exists else {}
    report("topic", _failures(connection, outcomes), "deleted", fine, as_json=as_json)


def _failures(
    connection: Connection, outcomes: Mapping[str, Outcome[None]]
) -> dict[str, CommandError | str | None]:
    return {
        topic: None if error is None else connection.failure(error, topic=topic)
        for topic, error in outcomes.items()
    }


def _row(topic: TopicDescription) -> dict[str, str | int]:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": max((len(each.replicas) for each in topic.partitions), default=0),
        "without_leader": sum(each.leader is None for each in topic.partitions),
        "out_of_sync": sum(len(each.isr) < len(each.replicas) for each in topic.partitions),
    }
