"""`millstream topic`: create, list, alter, delete.

`describe` is in `topic_description.py`, `hot` in `hot.py`.

A command with several topics does what it can, reports the failures, and exits with the code of the
first failure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
    parse_pairs,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.outcome import confirm_deletion, report
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.cli.topic.hot import hot
from millstream.cli.topic.topic_description import describe
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")
app.command("describe", epilog=EXIT_CODES_HELP)(describe)
app.command("hot", epilog=EXIT_CODES_HELP)(hot)

TopicsArgument: TypeAlias = Annotated[list[str], typer.Argument(metavar="TOPIC")]
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
    topics: TopicsArgument,
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
    from confluent_kafka.admin import NewTopic

    settings = parse_pairs(configs or (), "--config")
    connection, admin = _connect(servers, properties, timeout)
    wanted = [
        NewTopic(
            name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config=settings,
        )
        for name in dict.fromkeys(topics)
    ]
    futures = admin.create_topics(
        wanted, operation_timeout=timeout, request_timeout=timeout, validate_only=dry_run
    )
    fine = {ExitCode.EXISTS: "exists"} if if_not_exists else {}
    done = "would be created" if dry_run else "created"
    _report_outcomes(connection, futures, "create", done, fine, as_json)


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_topics(
    pattern: Annotated[
        str, typer.Argument(help="Show matching names; * and ? match any characters.")
    ] = "*",
    internal: Annotated[
        bool, typer.Option("--internal", help="Also show internal topics (__*).")
    ] = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List topics."""
    connection = Connection(servers, properties, timeout)
    metadata = connection.metadata(connection.admin())
    shown = [
        topic
        for name, topic in sorted(metadata.topics.items())
        if fnmatch.fnmatchcase(name, pattern) and (internal or not name.startswith("__"))
    ]
    rows = [
        {
            "topic": topic.topic,
            "partitions": len(topic.partitions),
            "replication_factor": max(
                (len(p.replicas) for p in topic.partitions.values()), default=0
            ),
            "without_leader": sum(p.leader < 0 for p in topic.partitions.values()),
            "out_of_sync": sum(len(p.isrs) < len(p.replicas) for p in topic.partitions.values()),
        }
        for topic in shown
    ]
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
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
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
    than its older records.
    """
    settings = parse_pairs(configs or (), "--config")
    removed = set(deleted_configs or ())
    if not settings and not removed and partitions is None:
        raise CommandError(
            ExitCode.USAGE, "nothing to change: give --config, --delete-config or --partitions."
        )
    if both := sorted(removed & settings.keys()):
        raise CommandError(ExitCode.USAGE, f"{both[0]} is both set and deleted: choose one.")
    connection, admin = _connect(servers, properties, timeout)
    changes: list[str] = []
    if settings or removed:
        _alter_configs(connection, admin, topic, settings, removed)
        changes += [f"{key}={value}" for key, value in settings.items()]
        changes += [f"{key} reset to default" for key in sorted(removed)]
    if partitions is not None:
        _increase_partitions(connection, admin, topic, partitions)
        changes.append(counted(partitions, "partition"))
    if as_json:
        print_json({"topic": topic, "result": "altered", "changes": changes})
    else:
        typer.echo(f"{topic}: {', '.join(changes)}")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def delete(
    topics: TopicsArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
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
    connection, admin = _connect(servers, properties, timeout)
    futures = admin.delete_topics(names, operation_timeout=timeout, request_timeout=timeout)
    fine = {ExitCode.NOT_FOUND: "absent"} if if_exists else {}
    _report_outcomes(connection, futures, "delete", "deleted", fine, as_json)


def _connect(
    servers: str, properties: list[str] | None, timeout: float
) -> tuple[Connection, AdminClient]:
    """Return a client that has reached a broker, so that no request waits for one."""
    connection = Connection(servers, properties, timeout)
    return connection, connection.reach()[0]


def _alter_configs(
    connection: Connection,
    admin: AdminClient,
    topic: str,
    settings: Mapping[str, str],
    removed: Iterable[str],
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in removed]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    futures = admin.incremental_alter_configs([resource], request_timeout=connection.timeout_s)
    _wait(connection, futures[resource], f"cannot alter topic {topic!r}", topic)


def _increase_partitions(
    connection: Connection, admin: AdminClient, topic: str, partitions: int
) -> None:
    from confluent_kafka.admin import NewPartitions

    futures = admin.create_partitions(
        [NewPartitions(topic, partitions)],
        operation_timeout=connection.timeout_s,
        request_timeout=connection.timeout_s,
    )
    _wait(connection, futures[topic], f"cannot add partitions to topic {topic!r}", topic)


def _wait(connection: Connection, future: Future[Any], what: str, topic: str) -> None:
    from confluent_kafka import KafkaException

    try:
        future.result()
    except KafkaException as exception:
        raise connection.failure(exception, what, topic) from None


def _report_outcomes(
    connection: Connection,
    futures: Mapping[str, Future[Any]],
    verb: str,
    done: str,
    fine: Mapping[ExitCode, str],
    as_json: bool,
) -> None:
    """Wait for each topic's outcome and report all outcomes."""
    outcomes: dict[str, CommandError | None] = {}
    for topic, future in futures.items():
        try:
            _wait(connection, future, f"cannot {verb} topic {topic!r}", topic)
            outcomes[topic] = None
        except CommandError as failure:
            outcomes[topic] = failure
    report("topic", outcomes, done, fine, as_json=as_json)
