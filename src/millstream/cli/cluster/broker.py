"""`millstream broker`: list, decommission."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from millstream.cli.cluster.broker_admin import BrokerAdmin, BrokerRow
from millstream.cli.support.cluster_connection import connected_cluster
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.terminal import (
    JsonOption,
    counted,
    error_console,
    note,
    print_json,
    print_table,
)
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")

app = typer.Typer(no_args_is_help=True, help="Look at brokers, and take one out of the cluster.")

_LOOK_S: Final = 0.5
#: Looks in a row that must find nothing to call off: the controller may just have begun something.
_QUIET_LOOKS: Final = 2


class _Asker:
    """Connects anew for each look, so that it outlives any broker."""

    __slots__ = ("_properties", "_servers", "_timeout_s")

    def __init__(self, servers: str, properties: list[str] | None, timeout_s: float) -> None:
        self._servers = servers
        self._properties = properties
        self._timeout_s = timeout_s

    def once(self, ask: Callable[[BrokerAdmin], _Answer]) -> _Answer:
        with connected_cluster(self._servers, self._properties, self._timeout_s) as cluster:
            return ask(BrokerAdmin(cluster))

    def patiently(self, ask: Callable[[BrokerAdmin], _Answer]) -> _Answer:
        """The same, again and again while brokers are away, until the time is up."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self.once(ask)
            except CommandError as error:
                is_away = error.code is ExitCode.NO_CONNECTION
                if not is_away or time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_S)


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_brokers(
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List brokers: alive, down, decommissioning or decommissioned, and what each holds."""
    rows = _Asker(servers, properties, timeout).patiently(BrokerAdmin.rows)
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    headings = ["BROKER", "STATE", "ADDRESS", "RACK", "ROLE", "LEADS", "REPLICAS", "MOVING"]
    cells = [
        [
            row.broker,
            row.state,
            row.address or "-",
            row.rack or "-",
            "controller" if row.is_controller else "-",
            row.leads,
            row.replicas,
            row.moving,
        ]
        for row in rows
    ]
    print_table(headings, cells, right=("BROKER", "LEADS", "REPLICAS", "MOVING"))


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def decommission(
    broker: Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker to empty.")],
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Call it off: replicas stay, or go back, and new ones come."),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Only say how far it is; nothing is begun.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Whether to stay until it is done.")
    ] = True,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            min=1,
            metavar="BYTES/S",
            help="What each broker may send, and receive, for replicas that are moved (any"
            " reassignment's). Lifted when the broker is empty, or by --cancel.",
        ),
    ] = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Move all replicas away from a broker, so that it can be taken out of the cluster.

    The cluster goes on with it by itself: end the command at any time, and run it again to see how
    far it is. Refused if those who remain could not hold all replicas. When it is done, the broker
    holds nothing and gets nothing new; stop its process then. To use its number again, or to undo
    it, run this with --cancel.
    """
    if cancel and (status or throttle is not None):
        raise CommandError(ExitCode.USAGE, "--cancel goes with neither --status nor --throttle.")
    asker = _Asker(servers, properties, timeout)
    row = asker.patiently(lambda admin: admin.row(broker))
    if cancel:
        row = _cancel(asker, row, timeout)
    elif not status:
        if throttle is not None:
            asker.patiently(lambda admin: admin.set_throttle(throttle))
        asker.patiently(lambda admin: admin.decommission(broker))
        row = asker.patiently(lambda admin: admin.row(broker))
        if wait:
            row = _watch(asker, row)
            if throttle is not None:
                asker.patiently(BrokerAdmin.lift_throttle)
    if as_json:
        print_json(row.as_dict())
    else:
        typer.echo(_sentence(row))


def _cancel(asker: _Asker, row: BrokerRow, timeout_s: float) -> BrokerRow:
    broker_id = row.broker
    if not row.is_decommissioned:
        raise CommandError(ExitCode.FAILED, f"broker {broker_id} is not being decommissioned.")
    asker.patiently(lambda admin: admin.recommission(broker_id))
    deadline = time.monotonic() + timeout_s
    quiet = 0
    while quiet < _QUIET_LOOKS:
        moves = asker.patiently(lambda admin: admin.cancel_moves(broker_id))
        quiet = 0 if moves else quiet + 1
        if time.monotonic() > deadline:
            raise CommandError(
                ExitCode.FAILED, f"replicas of broker {broker_id} keep being moved away."
            )
        time.sleep(_LOOK_S)
    asker.patiently(BrokerAdmin.lift_throttle)
    # A broker that is down and holds nothing is known to nobody any more.
    rows = asker.patiently(BrokerAdmin.rows)
    return next((each for each in rows if each.broker == broker_id), row)


def _watch(asker: _Asker, row: BrokerRow) -> BrokerRow:
    """Show how the broker gets empty; return when it is, or when somebody calls it off."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    total, broker_id = row.replicas, row.broker
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = error_console()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"replicas moved from broker {broker_id}", total=total)
        while row.replicas and row.is_decommissioned:
            progress.update(task, total=total, completed=total - row.replicas)
            time.sleep(_LOOK_S)
            before, row = row, asker.patiently(lambda admin: admin.row(broker_id))
            total = max(total, row.replicas)
            if row.replicas != before.replicas and not console.is_terminal:
                note(f"{total - row.replicas} of {counted(total, 'replica')} moved")
        progress.update(task, total=total, completed=total - row.replicas)
    if not row.is_decommissioned:
        raise CommandError(ExitCode.FAILED, f"broker {broker_id} was put back into service.")
    return row


def _sentence(row: BrokerRow) -> str:
    held = f"{counted(row.replicas, 'replica')}, {row.leads:,} of them as leader"
    if row.state == "decommissioned":
        return f"Broker {row.broker} is empty: its process can be stopped for good."
    if row.state == "decommissioning":
        return f"Broker {row.broker} still holds {held}; {row.moving:,} are on their way."
    return f"Broker {row.broker} is in service ({row.state}) and holds {held}."
