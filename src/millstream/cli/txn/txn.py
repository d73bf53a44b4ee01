"""`millstream txn`: list, describe, abort."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from millstream.cli.support.cluster_connection import connected_cluster
from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import RegexOption, YesOption, name_matcher
from millstream.cli.support.outcome import confirm
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import Duration, duration_option
from millstream.cli.support.terminal import JsonOption, format_time, note, print_json, print_table
from millstream.cli.txn.txn_admin import OpenTransaction, TransactionAdmin
from millstream.model.bootstrap import SERVERS_DEFAULT
from millstream.model.sentinel import NO_TIMEOUT_MS

app = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions.")

#: The default of the broker's transaction.max.timeout.ms.
_IDLE: Final = Duration.parse("15m")

_HangingOption = Annotated[
    bool,
    typer.Option(
        "--hanging", help="Transactions that partitions have open and no coordinator knows."
    ),
]
_TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="Only hanging transactions of this topic. Repeatable.",
        autocompletion=complete_topics,
    ),
]
_IdleOption = Annotated[
    Duration,
    duration_option("--idle", help="A transaction hangs only after this long without a write."),
]


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_transactions(
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only ids in this state, such as Ongoing. Repeatable."),
    ] = None,
    producer_ids: Annotated[
        list[int] | None, typer.Option("--producer-id", help="Only this producer id. Repeatable.")
    ] = None,
    open_for: Annotated[
        Duration | None,
        duration_option("--open-for", help="Only transactions open for longer than this."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Argument(help="Show matching ids; * and ? match any characters."),
    ] = None,
    regex: RegexOption = False,
    hanging: _HangingOption = False,
    topics: _TopicsOption = None,
    idle: _IdleOption = _IDLE,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List transactional ids, or hanging transactions."""
    with connected_cluster(servers, properties, timeout) as cluster:
        admin = TransactionAdmin(cluster, timeout)
        if hanging:
            _print_hanging(_hanging(admin, idle, topics), as_json)
            return
        open_ms = -1 if open_for is None else int(open_for * 1000)
        with progress("listing transactions"):
            found = admin.listed(states or (), producer_ids or (), open_ms)
    if pattern is not None:
        matches = name_matcher([pattern], is_regex=regex)
        found = [each for each in found if matches(each.transactional_id)]
    if as_json:
        print_json([each._asdict() for each in found])
    elif found:
        headings = ["TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"]
        print_table(headings, found, right=("COORDINATOR", "PRODUCER ID"))
    else:
        note("No transactions match.")


def _hanging(
    admin: TransactionAdmin, idle: Duration, topics: list[str] | None
) -> list[OpenTransaction]:
    with progress("partitions checked") as shown:
        return admin.hanging(
            int(idle * 1000), topics or (), lambda done, total: shown.update(done, total=total)
        )


def _print_hanging(found: list[OpenTransaction], as_json: bool) -> None:
    if as_json:
        print_json([each._asdict() for each in found])
    elif found:
        headings = ["TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET", "LAST WRITE"]
        rows = [
            (
                each.topic,
                each.partition,
                each.producer_id,
                each.producer_epoch,
                each.start_offset,
                format_time(each.last_timestamp),
            )
            for each in found
        ]
        print_table(headings, rows, right=("PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET"))
    else:
        note("No transaction hangs.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="ID")],
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show the producer, state and partitions of a transactional id."""
    with connected_cluster(servers, properties, timeout) as cluster:
        node_id, found = TransactionAdmin(cluster, timeout).describe(transactional_id)
    start_ms = found.transaction_start_time_ms
    row: dict[str, Any] = {
        "transactional_id": transactional_id,
        "coordinator": node_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.transaction_state,
        "timeout_ms": found.transaction_timeout_ms,
        "start_time": format_time(start_ms) if start_ms >= 0 else None,
        "partitions": [
            f"{topic.topic}-{number}" for topic in found.topics for number in topic.partitions
        ],
    }
    if as_json:
        print_json(row)
        return
    if row["state"] == "Ongoing":
        row["open_s"] = round(time.time() - start_ms / 1000, 1)
    if row["timeout_ms"] == NO_TIMEOUT_MS:
        row["timeout_ms"] = "none: it is prepared, and stays open until it is ended"
    row["partitions"] = ", ".join(row["partitions"]) or "-"
    for name, value in row.items():
        typer.echo(f"{name.replace('_', ' ') + ':':<18}{'-' if value is None else value}")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    hanging: _HangingOption = False,
    topics: _TopicsOption = None,
    idle: _IdleOption = _IDLE,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Abort the transaction of an id and fence its producer, or abort all hanging transactions."""
    if (transactional_id is None) != hanging:
        raise CommandError(ExitCode.USAGE, "give one transactional id, or --hanging.")
    with connected_cluster(servers, properties, timeout) as cluster:
        admin = TransactionAdmin(cluster, timeout)
        if transactional_id is not None:
            if not yes:
                question = f"Fence the producer of {transactional_id}?"
                confirm(question, "aborting", "nothing was aborted.")
            with progress(f"fencing the producer of {transactional_id}"):
                admin.fence(transactional_id)
            if as_json:
                print_json([{"transactional_id": transactional_id, "result": "fenced"}])
            else:
                typer.echo(f"{transactional_id}: fenced")
            return
        found = _hanging(admin, idle, topics)
        if not as_json or not yes:
            _print_hanging(found, as_json=False)
        if found and not yes:
            confirm("Abort all of these?", "aborting", "nothing was aborted.")
        with progress("transactions aborted", total=len(found)) as shown:
            for each in shown.each(found):
                admin.abort(each)
        if as_json:
            print_json([{**each._asdict(), "result": "aborted"} for each in found])
        elif found:
            typer.echo(f"{len(found)} aborted")
