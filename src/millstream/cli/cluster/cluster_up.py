"""`millstream cluster up`: an etcd and brokers on this machine, until Ctrl-C.

Owns the child processes: their commands, folders, ports, and the order of start and stop. For
trying and testing; nothing restarts what ends, so that killing a broker shows what a cluster does.

    DIR/etcd-N/  DIR/etcd-N.log       a member's data and what it says
    DIR/broker-N/  DIR/broker-N.log   the same of a broker
Brokers listen on PORT, PORT+1, ...; etcd on ETCD_PORT and the port after, ten further a member.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.terminal import note, print_table
from millstream.env.termination import on_termination
from millstream.model.durability import default_replicas

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0
_LOOK_S: Final = 0.2
_TAIL_BYTES: Final = 2000


@guarded
def up(
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="DIR", help="Directory of all data.")
    ] = Path("millstream-cluster"),
    brokers: Annotated[int, typer.Option("--brokers", "-n", min=1, max=9)] = 3,
    racks: Annotated[
        list[str] | None,
        typer.Option("--rack", metavar="NAME", help="Racks, given to brokers in turn. Repeatable."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=1, max=65000, help="The first broker's; others follow.")
    ] = 9092,
    http_port: Annotated[
        int, typer.Option("--http-port", min=1, max=65000, help="The same for metrics and health.")
    ] = 9644,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="etcd://HOST:PORT,...",
            help="Use this etcd instead of starting one.",
        ),
    ] = None,
    etcd_members: Annotated[int, typer.Option("--etcd-members", min=1, max=5)] = 1,
    etcd_port: Annotated[
        int, typer.Option("--etcd-port", min=1, max=65000, help="The first member's.")
    ] = 2379,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="A setting of all brokers. Repeatable."
        ),
    ] = None,
) -> None:
    """Start a cluster on this machine: an etcd and several brokers.

    It runs until Ctrl-C, and is there again with the same --data. Topics have three replicas where
    there are as many brokers. To see a failover, kill a broker's process; `millstream cluster
    status` tells what becomes of it.
    """
    parse_pairs(settings or (), "--set")
    data = data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    cluster = _LocalCluster(data)
    with on_termination(cluster.stop_requested.set), cluster:
        if metadata is None:
            metadata = cluster.start_etcd(etcd_members, etcd_port)
        cluster.start_brokers(
            brokers, _split(racks or ()), port, http_port, metadata, list(settings or ())
        )
        cluster.watch()


class _Child:
    """One process; its output goes to a file beside its data."""

    __slots__ = ("address", "data", "is_given_up", "log", "name", "process", "rack")

    def __init__(self, folder: Path, name: str, address: str, rack: str = "") -> None:
        self.name = name
        self.address = address
        self.rack = rack
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        #: Whether its end was told of already.
        self.is_given_up = False

    def start(self, command: Sequence[str]) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C in a terminal reaches all of its processes; the order is ours.
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def terminate(self) -> None:
        if self.process is not None and self.is_running():
            self.process.terminate()

    def finish(self, deadline: float) -> None:
        """Wait for its end, and put one to it that does not come in time."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            note(f"{self.name} does not stop and is killed.")
            self.process.kill()
            self.process.wait()

    def tail(self) -> str:
        text = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return "\n".join(f"    {line}" for line in text.splitlines()[-8:])


class _LocalCluster:
    """As a context: on the way out brokers are stopped, then etcd."""

    __slots__ = ("_brokers", "_folder", "_members", "stop_requested")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._members: list[_Child] = []
        self._brokers: list[_Child] = []
        #: Set by Ctrl-C or SIGTERM.
        self.stop_requested = threading.Event()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if any(child.is_running() for child in self._brokers):
            note("Stopping.")
        for group in (self._brokers, self._members):
            for child in group:
                child.terminate()
            deadline = time.monotonic() + STOP_S_MAX
            for child in group:
                child.finish(deadline)

    def start_etcd(self, count: int, port: int) -> str:
        """Start the members; gives their address."""
        program = shutil.which("etcd")
        if program is None:
            raise CommandError(
                ExitCode.FAILED,
                "etcd is not installed: `apt-get install etcd-server`, or name a running one with"
                " --metadata.",
            )
        present = len(list(self._folder.glob("etcd-[0-9]")))
        if present not in (0, count):
            raise CommandError(
                ExitCode.USAGE,
                f"{self._folder} holds an etcd of {present}: give --etcd-members {present}.",
            )
        names = [f"etcd-{number}" for number in range(1, count + 1)]
        peers = {name: f"http://{HOST}:{port + 10 * n + 1}" for n, name in enumerate(names)}
        for number, name in enumerate(names):
            child = _Child(self._folder, name, f"{HOST}:{port + 10 * number}")
            self._members.append(child)
            child.start(_etcd_command(program, child, peers))
        for child in self._members:
            self._wait(child, partial(_answers, f"http://{child.address}/health"))
        return "etcd://" + ",".join(child.address for child in self._members)

    def start_brokers(
        self,
        count: int,
        racks: Sequence[str],
        port: int,
        http_port: int,
        metadata: str,
        settings: Sequence[str],
    ) -> None:
        for number in range(count):
            rack = racks[number % len(racks)] if racks else ""
            child = _Child(self._folder, f"broker-{number + 1}", f"{HOST}:{port + number}", rack)
            self._brokers.append(child)
            own = [f"node.id={number + 1}", *([f"broker.rack={rack}"] if rack else [])]
            http = f"{HOST}:{http_port + number}"
            child.start(
                _broker_command(child, http, metadata, [*_defaults(count), *own, *settings])
            )
        for number, child in enumerate(self._brokers):
            self._wait(child, partial(_answers, f"http://{HOST}:{http_port + number}/readyz"))

    def watch(self) -> None:
        """Show the cluster, and what ends by itself, until told to stop."""
        if self.stop_requested.is_set():
            return
        rows = [
            (child.name, child.address, child.rack or "-", child.process.pid, str(child.log))
            for child in (*self._members, *self._brokers)
            if child.process is not None
        ]
        print_table(["PROCESS", "ADDRESS", "RACK", "PID", "LOG"], rows, right=("PID",))
        servers = ",".join(child.address for child in self._brokers)
        note(f"\nClients connect to {servers}. Ctrl-C stops everything.")
        while not self.stop_requested.wait(_LOOK_S):
            for child in (*self._members, *self._brokers):
                if not child.is_running() and not child.is_given_up:
                    child.is_given_up = True
                    assert child.process is not None
                    note(f"{child.name} has ended ({_describe(child.process.returncode)}).")
            if not any(child.is_running() for child in self._brokers):
                raise CommandError(ExitCode.FAILED, "no broker is left.")

    def _wait(self, child: _Child, is_ready: Callable[[], bool]) -> None:
        """Until it is ready, or told to stop; CommandError if it ends or takes too long."""
        deadline = time.monotonic() + START_S_MAX
        while not self.stop_requested.is_set() and not is_ready():
            if not child.is_running() or time.monotonic() > deadline:
                state = "does not get ready" if child.is_running() else "has ended"
                raise CommandError(
                    ExitCode.FAILED, f"{child.name} {state}; {child.log} says:\n{child.tail()}"
                )
            self.stop_requested.wait(_LOOK_S)


def _split(racks: Sequence[str]) -> list[str]:
    """`--rack a,b` is the same as `--rack a --rack b`."""
    return [name.strip() for text in racks for name in text.split(",") if name.strip()]


def _defaults(brokers: int) -> list[str]:
    """The numbers of replicas that brokers would find for themselves, once all of them have
    started. Here it is known before how many there are, so nobody waits."""
    replicas = default_replicas(brokers)
    return [
        f"default.replication.factor={replicas}",
        f"offsets.topic.replication.factor={replicas}",
        f"transaction.state.log.replication.factor={replicas}",
    ]


def _etcd_command(program: str, child: _Child, peers: dict[str, str]) -> list[str]:
    url, peer = f"http://{child.address}", peers[child.name]
    command = [program, "--name", child.name, "--data-dir", str(child.data)]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", ",".join(f"{name}={peers[name]}" for name in peers)]
    command += ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"]
    return [*command, "--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"]


def _broker_command(child: _Child, http: str, metadata: str, settings: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "millstream.cli.main", "serve", "--data", str(child.data)]
    command += ["--listen", child.address, "--http", http, "--metadata", metadata]
    for setting in settings:
        command += ["--set", setting]
    return command


def _answers(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


def _describe(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
