"""`millstream broker`: list, decommission. `config` is in `broker_config.py`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from millstream.cli.cluster import broker_config
from millstream.cli.cluster.broker_admin import BrokerAdmin, BrokerRow
from millstream.cli.support.cluster_connection import connected_cluster
from millstream.cli.support.completion import complete_brokers
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import ByteRate, byte_rate_option
from millstream.cli.support.terminal import (
    JsonOption,
    counted,
    print_json,
    print_table,
)
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")

app = typer.Typer(
    no_args_is_help=True, help="List and configure brokers, and remove one from the cluster."
)
app.add_typer(broker_config.app, name="config")

_POLL_S: Final = 0.5
#: This many polls in a row must find no reassignment: the controller may have just started one.
_QUIET_POLLS: Final = 2


class _BrokerRequests:
    """Opens a new connection for each request, so that it survives the loss of any broker."""

    __slots__ = ("_properties", "_servers", "_timeout_s")

    def __init__(self, servers: str, properties: list[str] | None, timeout_s: float) -> None:
        self._servers = servers
        self._properties = properties
        self._timeout_s = timeout_s

    def _send(self, request: Callable[[BrokerAdmin], _Result]) -> _Result:
        with connected_cluster(self._servers, self._properties, self._timeout_s) as cluster:
            return request(BrokerAdmin(cluster))

    def send(self, request: Callable[[BrokerAdmin], _Result]) -> _Result:
        """Send a request; retry until the timeout while no broker can be reached."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._send(request)
            except CommandError as error:
                is_unreachable = error.code is ExitCode.NO_CONNECTION
                if not is_unreachable or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_brokers(
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List brokers with their state, leaderships and replicas."""
    rows = _BrokerRequests(servers, properties, timeout).send(BrokerAdmin.rows)
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
    broker: Annotated[
        int,
        typer.Argument(
            metavar="ID",
            min=0,
            help="The broker to decommission.",
            autocompletion=complete_brokers,
        ),
    ],
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Cancel it: replicas stay or return, and the broker gets new ones."
        ),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Only show the progress; start nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Whether to wait until it is done.")
    ] = True,
    throttle: Annotated[
        ByteRate | None,
        byte_rate_option(
            "--throttle",
            minimum="1B/s",
            help="Limit for the replication of all reassignments, per broker and direction: 50MB/s."
            " Removed once the broker is empty, or by --cancel.",
        ),
    ] = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Move all replicas away from a broker, so that it can be removed from the cluster.

    The cluster does this by itself: the command may end at any time, and another run shows the
    progress. The request is rejected if the remaining brokers could not hold all replicas. At the
    end the broker holds no replica and gets no new ones; then stop its process. To undo this, or to
    use the id again, run the command with --cancel.
    """
    if cancel and (status or throttle is not None):
        raise CommandError(ExitCode.USAGE, "--cancel excludes --status and --throttle.")
    requests = _BrokerRequests(servers, properties, timeout)
    row = requests.send(lambda admin: admin.row(broker))
    if cancel:
        row = _cancel(requests, row, timeout)
    elif not status:
        if throttle is not None:
            requests.send(lambda admin: admin.set_throttle(int(throttle)))
        requests.send(lambda admin: admin.decommission(broker))
        row = requests.send(lambda admin: admin.row(broker))
        if wait:
            row = _watch(requests, row)
            if throttle is not None:
                requests.send(BrokerAdmin.lift_throttle)
    if as_json:
        print_json(row.as_dict())
    else:
        typer.echo(_sentence(row))


def _cancel(requests: _BrokerRequests, row: BrokerRow, timeout_s: float) -> BrokerRow:
    broker_id = row.broker
    if not row.is_decommissioned:
        raise CommandError(ExitCode.FAILED, f"broker {broker_id} is not being decommissioned.")
    requests.send(lambda admin: admin.recommission(broker_id))
    deadline = time.monotonic() + timeout_s
    quiet = 0
    while quiet < _QUIET_POLLS:
        moves = requests.send(lambda admin: admin.cancel_moves(broker_id))
        quiet = 0 if moves else quiet + 1
        if time.monotonic() > deadline:
            raise CommandError(
                ExitCode.FAILED, f"the cluster keeps moving replicas away from broker {broker_id}."
            )
        time.sleep(_POLL_S)
    requests.send(BrokerAdmin.lift_throttle)
    # The cluster no longer knows a broker that is down and holds nothing.
    rows = requests.send(BrokerAdmin.rows)
    return next((each for each in rows if each.broker == broker_id), row)


def _watch(requests: _BrokerRequests, row: BrokerRow) -> BrokerRow:
    """Show the progress until the broker is empty. Raises CommandError if it was cancelled."""
    total, broker_id = row.replicas, row.broker
    with progress(f"replicas moved from broker {broker_id}", total=total) as shown:
        while row.replicas and row.is_decommissioned:
            shown.update(total - row.replicas, total=total)
            time.sleep(_POLL_S)
            row = requests.send(lambda admin: admin.row(broker_id))
            total = max(total, row.replicas)
    if not row.is_decommissioned:
        raise CommandError(ExitCode.FAILED, f"broker {broker_id} was put back into service.")
    return row


def _sentence(row: BrokerRow) -> str:
    held = f"{counted(row.replicas, 'replica')}, {row.leads:,} of them as leader"
    if row.state == "decommissioned":
        return f"Broker {row.broker} is empty: its process can be stopped."
    if row.state == "decommissioning":
        return f"Broker {row.broker} still holds {held}; {row.moving:,} are moving."
    return f"Broker {row.broker} is in service ({row.state}) and holds {held}."
