"""`millstream cluster up`: an etcd and brokers on this machine, until Ctrl-C.

It chooses the folders and ports, and the order of start and stop. It does not restart a process
that exits, so that killing a broker shows a failover.

    DIR/etcd-N/  DIR/etcd-N.log       data and log of an etcd member
    DIR/broker-N/  DIR/broker-N.log   data and log of a broker
    DIR/security/                     with --secure: see `secure_setup.py`

Brokers listen on PORT, PORT+1, ... Etcd member N uses ETCD_PORT+10*(N-1) and the port after it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from millstream.cli.cluster.secure_setup import PROTOCOL, SecureSetup
from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
from millstream.env.termination import on_termination
from millstream.model.bootstrap import PORT_DEFAULT
from millstream.model.durability import default_replicas
from millstream.process.broker_server import BrokerEndpoints, BrokerServer
from millstream.process.etcd_server import (
    EtcdEndpoints,
    EtcdMember,
    is_etcd_installed,
    join_members,
)
from millstream.process.port import HOST
from millstream.process.readiness import listens
from millstream.process.server_process import ServerFailed, ServerProcess, stop_all

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
_POLL_S: Final = 0.2
#: For clients and for the other members.
_PORTS_OF_MEMBER: Final = 2
_FLAGS: Final = (
    *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"),
    *("--log-level", "warn"),
)


@dataclass(frozen=True, slots=True)
class _BrokerPlan:
    """The brokers to start. Brokers get the `racks` in turn."""

    count: int
    racks: Sequence[str]
    port: int
    http_port: int
    metadata: str
    settings: Mapping[str, str]
    #: None for brokers without encryption and authentication.
    security: SecureSetup | None


@guarded
def up(
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="DIR", help="Directory for all data.")
    ] = Path("millstream-cluster"),
    brokers: Annotated[
        int, typer.Option("--brokers", "-n", min=1, max=9, help="Number of brokers.")
    ] = 3,
    racks: Annotated[
        list[str] | None,
        typer.Option(
            "--rack", metavar="NAME", help="Rack names; brokers get them in turn. Repeatable."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=1, max=65000, help="Port of the first broker; the others follow."
        ),
    ] = PORT_DEFAULT,
    http_port: Annotated[
        int,
        typer.Option(
            "--http-port", min=1, max=65000, help="Port of the first broker's metrics and health."
        ),
    ] = 9644,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="etcd://HOST:PORT,...",
            help="Use this etcd instead of starting one.",
        ),
    ] = None,
    etcd_members: Annotated[
        int, typer.Option("--etcd-members", min=1, max=5, help="Number of etcd members to start.")
    ] = 1,
    etcd_port: Annotated[
        int, typer.Option("--etcd-port", min=1, max=65000, help="Port of the first member.")
    ] = 2379,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="A setting for all brokers. Repeatable."
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Use TLS, users with passwords (SCRAM), and ACLs; create all of them."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster on this machine: an etcd and several brokers.

    It runs until Ctrl-C; the same --data starts it again. Topics have three replicas if there are
    at least three brokers. To see a failover, kill a broker's process and run `millstream cluster
    status`.

    With --secure the brokers encrypt all connections, every client logs in, and only the user
    `admin` may do anything until ACLs say more. The output says how to connect.
    """
    own = parse_pairs(settings or (), "--set")
    _require_free(port, brokers, "--port")
    _require_free(http_port, brokers, "--http-port")
    if metadata is None:
        for number in range(etcd_members):
            _require_free(_etcd_port(etcd_port, number), _PORTS_OF_MEMBER, "--etcd-port")
    data = data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    cluster = _LocalCluster(data)
    with on_termination(cluster.stop_requested.set), cluster:
        if metadata is None:
            metadata = cluster.start_etcd(etcd_members, etcd_port)
        setup = _prepare_security(data, brokers, port) if secure else None
        plan = _BrokerPlan(brokers, _split(racks or ()), port, http_port, metadata, own, setup)
        cluster.start_brokers(plan)
        cluster.show(as_json)
        if setup is not None and not cluster.stop_requested.is_set():
            note(f"\n{setup.instructions()}")
        cluster.watch()


class _LocalCluster:
    """The child processes. Leaving the context stops the brokers, then etcd."""

    __slots__ = ("_brokers", "_folder", "_members", "_reported", "stop_requested")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._members: list[EtcdMember] = []
        self._brokers: list[BrokerServer] = []
        #: Processes whose exit was reported.
        self._reported: set[str] = set()
        #: Set by Ctrl-C or SIGTERM.
        self.stop_requested = threading.Event()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if any(broker.is_alive() for broker in self._brokers):
            note("Stopping.")
        with progress("stopping the cluster"):
            stop_all(self._brokers, STOP_S_MAX)
            stop_all(self._members, STOP_S_MAX)

    def start_etcd(self, count: int, port: int) -> str:
        """Start the members and return the address of the metadata store."""
        if not is_etcd_installed():
            raise CommandError(
                ExitCode.FAILED,
                "etcd is not installed: `apt-get install etcd-server`, or name a running one with"
                " --metadata.",
            )
        present = len(list(self._folder.glob("etcd-[0-9]")))
        if present not in (0, count):
            raise CommandError(
                ExitCode.USAGE,
                f"{self._folder} has the data of {present} etcd members: give --etcd-members"
                f" {present}.",
            )
        for number in range(count):
            first = _etcd_port(port, number)
            member = EtcdMember(
                f"etcd-{number + 1}", self._folder, EtcdEndpoints(HOST, first, first + 1), _FLAGS
            )
            self._members.append(member)
        join_members(self._members)
        self._start(self._members)
        return "etcd://" + ",".join(member.address for member in self._members)

    def start_brokers(self, plan: _BrokerPlan) -> None:
        """Start all brokers at the same time and wait until they are ready."""
        for number in range(plan.count):
            own: dict[str, object] = {"node.id": number + 1, "metadata.store": plan.metadata}
            if plan.racks:
                own["broker.rack"] = plan.racks[number % len(plan.racks)]
            endpoints = BrokerEndpoints(HOST, plan.port + number, plan.http_port + number)
            settings = {**_replication_settings(plan.count), **own, **plan.settings}
            broker = BrokerServer(f"broker-{number + 1}", self._folder, endpoints, settings)
            if plan.security is not None:
                broker.config_file = plan.security.settings_file
                broker.http_token = plan.security.http_token
                broker.listeners = [f"{PROTOCOL}://{broker.bootstrap}"]
            self._brokers.append(broker)
        self._start(self._brokers)

    def _start(self, servers: Sequence[ServerProcess]) -> None:
        for server in servers:
            server.is_detached = True
            server.start(wait=False)
        kind = servers[0].name.rpartition("-")[0]
        with progress(f"{kind} processes ready", total=len(servers)) as shown:
            for server in servers:
                try:
                    server.wait_until_ready(START_S_MAX, self.stop_requested.is_set)
                except ServerFailed as error:
                    raise CommandError(ExitCode.FAILED, str(error)) from None
                shown.advance()

    def show(self, as_json: bool) -> None:
        """Print the processes."""
        if self.stop_requested.is_set():
            return
        addresses: dict[str, tuple[str, object]] = {
            each.name: (each.address, None) for each in self._members
        }
        for broker in self._brokers:
            addresses[broker.name] = (broker.bootstrap, broker.settings.get("broker.rack"))
        rows = [
            {
                "process": each.name,
                "address": addresses[each.name][0],
                "rack": addresses[each.name][1],
                "pid": each.pid,
                "log": str(each.log_path),
            }
            for each in (*self._members, *self._brokers)
        ]
        if as_json:
            print_json(rows)
            # The output may be a pipe, whose reader waits for it.
            sys.stdout.flush()
        else:
            cells = [["-" if cell is None else cell for cell in row.values()] for row in rows]
            print_table(["PROCESS", "ADDRESS", "RACK", "PID", "LOG"], cells, right=("PID",))
        servers = ",".join(broker.bootstrap for broker in self._brokers)
        note(f"\nClients connect to {servers}. Ctrl-C stops everything.")

    def watch(self) -> None:
        """Report each process that exits, until the user stops the cluster."""
        while not self.stop_requested.wait(_POLL_S):
            self._report_exits()
            if not any(broker.is_alive() for broker in self._brokers):
                raise CommandError(ExitCode.FAILED, "no broker is left.")

    def _report_exits(self) -> None:
        for server in (*self._members, *self._brokers):
            if server.has_exited() and server.name not in self._reported:
                self._reported.add(server.name)
                note(f"{server.name} has ended ({_describe(server.returncode or 0)}).")


def _etcd_port(port: int, number: int) -> int:
    """Return the first port of an etcd member; `number` counts from 0."""
    return port + 10 * number


def _require_free(port: int, count: int, option: str) -> None:
    """Raise CommandError if another process listens on one of the ports.

    Otherwise that process could be taken for the new one: it is ready, and has other data."""
    for taken in range(port, port + count):
        if listens(HOST, taken):
            raise CommandError(
                ExitCode.FAILED,
                f"another process listens on {HOST}:{taken}: stop it, or choose other ports with"
                f" {option}.",
            )


def _prepare_security(folder: Path, brokers: int, port: int) -> SecureSetup:
    servers = ",".join(f"{HOST}:{port + number}" for number in range(brokers))
    setup = SecureSetup(folder)
    try:
        setup.prepare(servers)
    except OSError as error:
        raise CommandError(ExitCode.FAILED, f"cannot write to {setup.folder}: {error}") from None
    return setup


def _split(racks: Sequence[str]) -> list[str]:
    """Split names at commas: `--rack a,b` means `--rack a --rack b`."""
    return [name.strip() for text in racks for name in text.split(",") if name.strip()]


def _replication_settings(brokers: int) -> dict[str, object]:
    """Return the replication factors that brokers would choose once all of them have started.

    The number of brokers is known here, so that no broker has to wait for the others."""
    replicas = default_replicas(brokers)
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
    }


def _describe(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
