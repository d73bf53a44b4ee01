"""`millstream outbox`: init, relay, status, settle, rejected, retry, discard."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.support.connection import (
    PropertiesOption,
    ServersOption,
    client_properties,
)
from millstream.cli.support.failure import (
    EXIT_CODES_HELP,
    CommandError,
    ExitCode,
    failing_with,
    guarded,
)
from millstream.cli.support.message import put_bytes
from millstream.cli.support.option import FollowOption, YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import Duration, duration_option
from millstream.cli.support.terminal import (
    JsonOption,
    counted,
    format_duration,
    format_time,
    note,
    print_json,
    print_table,
)
from millstream.env.termination import on_termination
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.outbox.source import Database, RejectedEvent

app = typer.Typer(
    no_args_is_help=True, help="Send events from a database's outbox table, exactly once."
)

_TABLE_DEFAULT: Final = "millstream_outbox"
_NO_TIME: Final = Duration(0)
_POLL: Final = Duration.parse("500ms")

_DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        "-d",
        envvar="MILLSTREAM_OUTBOX_DATABASE",
        metavar="URL",
        help="postgresql://USER@HOST/NAME or sqlite:///FILE.",
    ),
]
_TableOption = Annotated[str, typer.Option("--table", help="The outbox table.")]
_EventsOption = Annotated[
    list[int] | None,
    typer.Option("--event", "-e", metavar="ID", help="Only this event. Repeatable."),
]
_AllOption = Annotated[bool, typer.Option("--all", help="All rejected events.")]


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def init(
    database: _DatabaseOption,
    table: _TableOption = _TABLE_DEFAULT,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Number of relays that can share the work (PostgreSQL: 4; SQLite: 1).",
        ),
    ] = None,
    notify: Annotated[
        bool, typer.Option(help="Let PostgreSQL notify relays at each insert; otherwise they poll.")
    ] = True,
    show: Annotated[
        bool, typer.Option("--print", help="Print the SQL for your migrations instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create the outbox's tables."""
    from millstream.client.outbox.schema import SHARDS_DEFAULT, OutboxSchema

    with _outbox_failures():
        found = _database(database, table)
        if show:
            dialect = "sqlite" if database.startswith("sqlite") else "postgresql"
            count = shards or (SHARDS_DEFAULT if dialect == "postgresql" else 1)
            for statement in OutboxSchema(table, count, notify).statements(dialect):  # type: ignore[arg-type]
                typer.echo(f"{statement};\n")
            return
        is_created = found.init(shards, notify=notify)
    if not is_created:
        raise CommandError(ExitCode.EXISTS, f"table {table!r} already exists.")
    if as_json:
        print_json({"table": table, "result": "created"})
    else:
        typer.echo(f"{table}: created")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def relay(
    database: _DatabaseOption,
    table: _TableOption = _TABLE_DEFAULT,
    keep: Annotated[
        Duration, duration_option("--keep", help="Keep rows for this long after they were sent.")
    ] = _NO_TIME,
    batch_rows: Annotated[
        int,
        typer.Option(min=1, max=100_000, help="Send at most this many rows in one transaction."),
    ] = 5_000,
    poll: Annotated[
        Duration,
        duration_option("--poll", minimum="10ms", help="How often to poll without a notification."),
    ] = _POLL,
    shards_max: Annotated[
        int | None,
        typer.Option(min=1, help="Relay at most this many shards; other relays do the rest."),
    ] = None,
    follow: FollowOption = True,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Send events as they are committed. Several relays share the work; each event is sent once.

    It runs until it is stopped, or with --no-follow until no event is pending.
    """
    from millstream.client.outbox.relay import Relay, RelaySettings
    from millstream.client.outbox.source import BatchLimit

    settings = RelaySettings(
        limit=BatchLimit(batch_rows, 16 << 20),
        keep_s=keep,
        poll_s=poll,
        shards_max=shards_max,
        drain=not follow,
    )
    given = client_properties(servers, properties, "millstream-outbox")
    with _outbox_failures():
        worker = Relay(_database(database, table), given, settings, note)
        # A relay that runs for ever must not fill a log file with its progress.
        shown = progress("events sent", count=lambda: worker.sent, lines=not follow)
        with on_termination(worker.stop), shown:
            worker.run()
    if as_json:
        print_json(
            {
                "sent": worker.sent,
                "rejected": worker.rejected,
                "undecided_shards": sorted(worker.undecided_shards),
            }
        )
    else:
        note(f"{counted(worker.sent, 'event')} sent")
    if worker.rejected:
        note(f"{counted(worker.rejected, 'event')} rejected: see `millstream outbox rejected`.")
    if worker.undecided_shards:
        raise CommandError(
            ExitCode.FAILED,
            "some shards need a decision: see above and `millstream outbox settle`.",
        )


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def status(
    database: _DatabaseOption, table: _TableOption = _TABLE_DEFAULT, as_json: JsonOption = False
) -> None:
    """Show each shard: pending events, its relay, and the last error."""
    with _outbox_failures():
        found = _outbox(database, table).status()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    now_ms = time.time() * 1000
    rows = [
        (
            each.shard,
            each.pending,
            "-" if each.oldest_ms is None else format_duration((now_ms - each.oldest_ms) / 1000),
            each.sent,
            each.batch,
            each.claimed,
            each.rejected,
            (each.owner or "-") if each.active else "none",
            each.error or "",
        )
        for each in found
    ]
    numbers = ["SHARD", "PENDING", "OLDEST", "SENT", "BATCH", "CLAIMED", "REJECTED"]
    print_table([*numbers, "RELAY", "ERROR"], rows, right=numbers)


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def settle(
    database: _DatabaseOption,
    shard: Annotated[int, typer.Option(min=0, help="The shard.")],
    sent: Annotated[
        bool, typer.Option("--sent/--unsent", help="Whether the claimed batch is in the topic.")
    ],
    table: _TableOption = _TABLE_DEFAULT,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
) -> None:
    """Decide whether a shard's last batch was sent, after the broker has lost its progress."""
    from millstream.client.outbox.sink import InterruptedSinkError, Sink, SinkError, prepare

    given = client_properties(servers, properties, "millstream-outbox")
    deadline = time.monotonic() + 30
    with _outbox_failures():
        source = _database(database, table)
        try:
            prepare(given, len(source.shards()))
            sink = Sink(given, source.name(), shard, lambda: time.monotonic() > deadline)
            try:
                sink.open()
                rows = source.settle_claim(shard, sink.committed() or 0, sent=sent)
            finally:
                sink.close()
        except (SinkError, InterruptedSinkError) as error:
            raise CommandError(ExitCode.NO_CONNECTION, f"{servers}: {error}") from None
    result = "sent" if sent else "unsent"
    if as_json:
        print_json({"shard": shard, "events": rows, "result": result})
    else:
        typer.echo(f"shard {shard}: {counted(rows, 'event')} marked as {result}")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def rejected(
    database: _DatabaseOption,
    events: _EventsOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")
    ] = 100,
    table: _TableOption = _TABLE_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List events that the broker rejects: too large, no such topic. --json adds their values."""
    with _outbox_failures():
        found = _outbox(database, table).rejected(limit + 1, events)
    shown = found[:limit]
    if as_json:
        print_json([_rejected_row(each) for each in shown])
        return
    print_table(
        ["EVENT", "SHARD", "REJECTED", "TOPIC", "KEY", "BYTES", "ERROR"],
        [
            (
                each.id,
                each.shard,
                format_time(each.rejected_ms),
                each.topic,
                (each.key or b"").decode(errors="backslashreplace"),
                len(each.value or b""),
                each.error,
            )
            for each in shown
        ],
        right=("EVENT", "SHARD", "BYTES"),
    )
    if len(found) > limit:
        note(f"There are more than {limit}: raise --limit.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def retry(
    database: _DatabaseOption,
    events: _EventsOption = None,
    everything: _AllOption = False,
    table: _TableOption = _TABLE_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Send rejected events again, after the cause was fixed."""
    chosen = _chosen(events, everything)
    with _outbox_failures():
        count = _outbox(database, table).retry(chosen)
    _report(count, chosen, "pending", as_json)


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def discard(
    database: _DatabaseOption,
    events: _EventsOption = None,
    everything: _AllOption = False,
    table: _TableOption = _TABLE_DEFAULT,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete rejected events."""
    chosen = _chosen(events, everything)
    with _outbox_failures():
        outbox = _outbox(database, table)
        if not yes:
            which = "all rejected events" if chosen is None else counted(len(chosen), "event")
            confirm(f"Delete {which} of {table}?", "deleting", "nothing was deleted.")
        count = outbox.discard(chosen)
    _report(count, chosen, "deleted", as_json)


def _chosen(events: list[int] | None, everything: bool) -> list[int] | None:
    """Return the chosen events, or None for all."""
    if bool(events) == everything:
        raise CommandError(ExitCode.USAGE, "choose events: --event ID, or --all.")
    return events or None


def _report(count: int, chosen: list[int] | None, result: str, as_json: bool) -> None:
    if chosen is not None and not count:
        raise CommandError(ExitCode.NOT_FOUND, "no such rejected event.")
    if as_json:
        print_json({"events": count, "result": result})
    else:
        typer.echo(f"{counted(count, 'event')} {result}")


def _rejected_row(event: RejectedEvent) -> dict[str, Any]:
    row = event._asdict()
    for name in ("key", "value"):
        put_bytes(row, name, row.pop(name))
    return row


def _outbox(address: str, table: str) -> Database:
    """Return the outbox after adding tables that it lacks."""
    found = _database(address, table)
    found.upgrade()
    return found


def _database(address: str, table: str) -> Database:
    from millstream.client.outbox.address import database_at

    return database_at(address, table)


def _outbox_failures() -> AbstractContextManager[None]:
    """Turn the outbox's exceptions into the command's failure."""
    from millstream.client.outbox.source import ShardTakenError, SourceError

    return failing_with(
        {
            ValueError: ExitCode.USAGE,
            SourceError: ExitCode.FAILED,
            ShardTakenError: ExitCode.FAILED,
        }
    )
