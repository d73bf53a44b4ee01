"""`millstream cluster`: status, brokers, partitions.

`up` is in `cluster_up.py`, `elect` in `election.py`.

These commands are clients: they show the metadata that any broker returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.cluster.cluster_up import up
from millstream.cli.cluster.election import elect
from millstream.cli.support.completion import complete_brokers, complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, ExitCode, guarded
from millstream.cli.support.option import RegexOption, name_matcher
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin

app = typer.Typer(
    no_args_is_help=True, help="Start a local cluster, and show the state of a cluster."
)
app.command("up", epilog=EXIT_CODES_HELP)(up)
app.command("elect", epilog=EXIT_CODES_HELP)(elect)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition as the metadata describe it."""

    topic: str
    partition: int
    #: None without a leader.
    leader: int | None
    #: The preferred leader is first.
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_led_by_preferred(self) -> bool:
        return bool(self.replicas) and self.leader == self.replicas[0]


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def status(
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show whether the cluster is healthy. The exit code is 1 if it is not."""
    connection = Connection(servers, properties, timeout)
    admin, description = connection.reach()
    partitions = _read_partitions(connection, admin)
    alive = {broker.node_id for broker in description.brokers}
    lost = sorted({node for row in partitions for node in row.replicas} - alive)
    found = {
        "cluster_id": description.cluster_id,
        "controller": description.controller.node_id if description.controller else None,
        "brokers": len(alive),
        "missing_brokers": lost,
        "topics": len({row.topic for row in partitions}),
        "partitions": len(partitions),
        "without_leader": sum(row.leader is None for row in partitions),
        "without_in_sync_replica": sum(not row.isr for row in partitions),
        "under_replicated": sum(row.is_under_replicated for row in partitions),
        "not_led_by_preferred": sum(not row.is_led_by_preferred for row in partitions),
    }
    is_healthy = not (lost or found["without_leader"] or found["under_replicated"])
    if as_json:
        print_json({"healthy": is_healthy, **found})
    else:
        _print_status(found, is_healthy)
    if not is_healthy:
        raise typer.Exit(ExitCode.FAILED)


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def brokers(
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List live brokers with the partitions that each leads and replicates."""
    connection = Connection(servers, properties, timeout)
    admin, description = connection.reach()
    partitions = _read_partitions(connection, admin)
    rows: list[dict[str, Any]] = [
        {
            "broker": node.node_id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "controller": node == description.controller,
            "leads": sum(row.leader == node.node_id for row in partitions),
            "replicas": sum(node.node_id in row.replicas for row in partitions),
            "out_of_sync": sum(
                node.node_id in row.replicas and node.node_id not in row.isr for row in partitions
            ),
        }
        for node in description.brokers
    ]
    if as_json:
        print_json(rows)
        return
    headings = ["BROKER", "ADDRESS", "RACK", "ROLE", "LEADS", "REPLICAS", "OUT OF SYNC"]
    cells = [
        [
            row["broker"],
            f"{row['host']}:{row['port']}",
            row["rack"] or "-",
            "controller" if row["controller"] else "-",
            row["leads"],
            row["replicas"],
            row["out_of_sync"],
        ]
        for row in rows
    ]
    print_table(headings, cells, right=("BROKER", "LEADS", "REPLICAS", "OUT OF SYNC"))


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def partitions(
    pattern: Annotated[
        str,
        typer.Argument(
            help="Show matching topics; * and ? match any characters.",
            autocompletion=complete_topics,
        ),
    ] = "*",
    unhealthy: Annotated[
        bool,
        typer.Option(
            "--unhealthy", help="Only partitions without a leader or with a replica out of sync."
        ),
    ] = False,
    broker: Annotated[
        int | None,
        typer.Option(
            "--broker",
            metavar="ID",
            help="Only partitions with a replica on this broker.",
            autocompletion=complete_brokers,
        ),
    ] = None,
    regex: RegexOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List partitions with their leaders, replicas and in-sync replicas."""
    matches = name_matcher([pattern], is_regex=regex)
    connection = Connection(servers, properties, timeout)
    rows = [
        row
        for row in _read_partitions(connection, connection.open_admin())
        if matches(row.topic)
        and (broker is None or broker in row.replicas)
        and (not unhealthy or row.leader is None or row.is_under_replicated)
    ]
    if as_json:
        print_json(
            [
                {
                    "topic": row.topic,
                    "partition": row.partition,
                    "leader": row.leader,
                    "replicas": list(row.replicas),
                    "isr": list(row.isr),
                }
                for row in rows
            ]
        )
    elif rows:
        headings = ["TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC"]
        print_table(headings, map(_cells, rows), right=("PARTITION", "LEADER"))
    else:
        note("All partitions are healthy." if unhealthy else "No partitions match.")


def _read_partitions(connection: Connection, admin: Admin) -> list[PartitionRow]:
    with progress("reading the partitions"):
        return partition_rows(connection, admin)


def partition_rows(connection: Connection, admin: Admin) -> list[PartitionRow]:
    """Return all partitions, by topic and number. Raises CommandError."""
    from millstream.client.error import BrokerError, is_missing

    rows: list[PartitionRow] = []
    with connection.failing():
        names = admin.list_topics(internal=True)
        for name, topic in admin.describe_topics(names, elr=False).items():
            if isinstance(topic, BrokerError) and is_missing(topic.code):
                # It was deleted after it was listed.
                continue
            if isinstance(topic, Exception):
                raise connection.failure(topic, topic=name)
            rows += [
                PartitionRow(name, each.partition, each.leader, each.replicas, each.isr)
                for each in topic.partitions
            ]
    return rows


def _cells(row: PartitionRow) -> list[object]:
    return [
        row.topic,
        row.partition,
        "none" if row.leader is None else row.leader,
        ",".join(map(str, row.replicas)),
        ",".join(map(str, row.isr)) or "none",
    ]


def _print_status(found: dict[str, Any], is_healthy: bool) -> None:
    word, color = ("healthy", "green") if is_healthy else ("unhealthy", "red")
    typer.secho(word, fg=color, bold=True)
    controller = found["controller"]
    typer.echo(f"cluster      {found['cluster_id']}")
    typer.echo(f"controller   {'none' if controller is None else f'broker {controller}'}")
    missing = ", ".join(map(str, found["missing_brokers"]))
    typer.echo(f"brokers      {found['brokers']} alive" + (f", missing: {missing}" * bool(missing)))
    waiting = found["without_in_sync_replica"]
    typer.echo(
        f"partitions   {found['partitions']:,} in {counted(found['topics'], 'topic')}:"
        f" {found['without_leader']:,} without leader,"
        f" {found['under_replicated']:,} under-replicated,"
        f" {found['not_led_by_preferred']:,} not led by the preferred replica"
    )
    if waiting:
        typer.echo(
            f"no replica   {counted(waiting, 'partition')} without an in-sync replica: restore the"
            " disks of these replicas,\n             or accept the loss of records with"
            " `millstream cluster elect TOPIC --unclean`"
        )
