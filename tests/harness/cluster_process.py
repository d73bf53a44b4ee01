"""`millstream cluster up` as a child process, with brokers that can be killed and started again.

with ClusterProcess(tmp_path, {"min.insync.replicas": 2}) as cluster:
    number = cluster.coordinator("my-transactions", TRANSACTION)
    cluster.kill(number)
    cluster.start(number)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from harness.broker_process import free_port, wait_until
from harness.raw_client import RawClient
from millstream.model.error import ErrorCode
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest

HOST: Final = "127.0.0.1"
START_SECONDS_MAX: Final = 120.0
STOP_SECONDS_MAX: Final = 90.0


class ClusterProcess:
    """Brokers are numbered from 1. At least one of them must never be killed: `up` ends when none
    of those that it started is left."""

    def __init__(
        self, folder: Path, settings: Mapping[str, object] | None = None, brokers: int = 3
    ) -> None:
        self._folder = folder
        self._output = folder / "up.out"
        self._ports = _free_range(brokers)
        self._http_ports = _free_range(brokers)
        arguments = ["--brokers", str(brokers), "--data", str(folder / "data")]
        arguments += ["--port", str(self._ports[0]), "--http-port", str(self._http_ports[0])]
        arguments += ["--etcd-port", str(free_port())]
        for name, value in (settings or {}).items():
            arguments += ["--set", f"{name}={value}"]
        program = str(Path(sys.executable).with_name("millstream"))
        self._command = ["env", "--default-signal=INT", program, "cluster", "up", *arguments]
        self._up: subprocess.Popen[bytes]
        #: The command that a broker was started with, by its number.
        self._commands: dict[int, list[str]] = {}
        self._pids: dict[int, int] = {}
        #: Brokers that were started again.
        self._own: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._ports)

    def __enter__(self) -> Self:
        kept = {name: text for name, text in os.environ.items() if "MILLSTREAM" not in name}
        with self._output.open("wb") as output:
            self._up = subprocess.Popen(
                self._command, stdout=output, stderr=output, env={**kept, "COLUMNS": "300"}
            )
        wait_until(self._is_up, "the cluster to be up", START_SECONDS_MAX)
        for line in self._output.read_text().splitlines():
            words = line.split()
            if words and words[0].startswith("broker-"):
                number, pid = int(words[0].removeprefix("broker-")), int(words[3])
                self._pids[number] = pid
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                self._commands[number] = [word.decode() for word in command if word]
        return self

    def _is_up(self) -> bool:
        assert self._up.poll() is None, self._output.read_text()
        return "Clients connect to" in self._output.read_text()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._own.values():
            process.terminate()
        for process in self._own.values():
            _end(process)
        self._up.send_signal(signal.SIGINT)
        _end(self._up)

    def kill(self, number: int) -> None:
        """`kill -9`."""
        own = self._own.pop(number, None)
        if own is not None:
            own.kill()
            own.wait()
            return
        pid = self._pids.pop(number)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of broker {number}")

    def start(self, number: int) -> None:
        """Start a broker that was killed, and return when it serves."""
        with (self._folder / f"broker-{number}.again.log").open("ab") as output:
            self._own[number] = subprocess.Popen(
                self._commands[number], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        url = f"http://{HOST}:{self._http_ports[number - 1]}/readyz"
        wait_until(lambda: _answers(url), f"broker {number} to be ready", START_SECONDS_MAX)

    def client(self) -> RawClient:
        """Of a broker that runs."""
        number = next(iter(self._pids))
        return RawClient(HOST, self._ports[number - 1])

    def create_topic(self, name: str, partitions: int) -> None:
        """With a replica on each broker, as soon as all of them know of each other."""
        topic = CreateTopicsRequest.Topic(
            name=name, num_partitions=partitions, replication_factor=len(self._ports)
        )

        def is_made() -> bool:
            with self.client() as client:
                (row,) = client.call(CreateTopicsRequest(topics=[topic])).topics
            expected = (
                ErrorCode.NONE,
                ErrorCode.INVALID_REPLICATION_FACTOR,
                ErrorCode.TOPIC_ALREADY_EXISTS,
            )
            assert row.error_code in expected, row
            return row.error_code != ErrorCode.INVALID_REPLICATION_FACTOR

        wait_until(is_made, f"{name} to be made")

    def coordinator(self, key: str, key_type: int) -> int:
        """The broker that coordinates a group or a transactional id."""
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        found: list[int] = []

        def is_found() -> bool:
            with self.client() as client:
                (row,) = client.call(request).coordinators
            if row.error_code == 0:
                found.append(row.node_id)
            return bool(found)

        wait_until(is_found, f"the coordinator of {key}")
        return found[0]

    def log_text(self) -> str:
        """What all brokers said."""
        logs = [*self._folder.glob("data/broker-*.log"), *self._folder.glob("broker-*.log")]
        return "".join(path.read_text(errors="replace") for path in logs)


def _free_range(count: int) -> list[int]:
    """Ports that follow each other."""
    first = free_port()
    return [first + number for number in range(count)]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS_MAX)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
