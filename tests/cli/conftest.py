"""A broker for the commands to talk to: `millstream serve` as a child process on a free port.

With MILLSTREAM_TEST_BOOTSTRAP=host:port the tests run against the broker there instead, for
example an Apache Kafka, which tells whether a failure is the command's or the broker's.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from millstream.cli.main import app

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0


class Outcome:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: bytes, error: str) -> None:
        self.code = code
        self.bytes = out
        self.out = out.decode(errors="replace")
        self.error = error

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.error}"


Run = Callable[..., Outcome]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Child:
    """A `millstream serve` with its data and output under one folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        self.data = folder / "data"
        self._log = folder / "broker.log"
        command = [sys.executable, "-m", "millstream.cli.main", "serve", "--data", str(self.data)]
        command += ["--listen", self.address, "--http", self.http, *arguments]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """Return once `/readyz` says 200; fail with the output when that never happens."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=1):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        self._give_up("did not become ready")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to stop; it must do so, in time and with exit code 0."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            code = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._give_up("did not stop")
        assert code == 0, self._log.read_text()[-4000:]

    def _give_up(self, what: str) -> NoReturn:
        self._process.kill()
        self._process.wait()
        pytest.fail(f"the broker {what}:\n{self._log.read_text()[-4000:]}")


@pytest.fixture
def start_broker(tmp_path: Path) -> Callable[..., Child]:
    """Start a broker of the test's own, which the test stops."""
    return lambda *arguments: Child(tmp_path, *arguments)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running broker that creates topics only when told to."""
    if external := os.environ.get("MILLSTREAM_TEST_BOOTSTRAP"):
        yield external
        return
    folder = tmp_path_factory.mktemp("broker")
    child = Child(folder, "--set", "auto.create.topics.enable=false")
    yield child.address
    child.stop()


@pytest.fixture
def run() -> Run:
    """Run `millstream ARGUMENTS...` in this process, with no broker."""

    def run_command(*arguments: str, stdin: bytes | str | None = None) -> Outcome:
        environment = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout_bytes, result.stderr)

    return run_command


@pytest.fixture
def ask(run: Run, broker: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command that talks to the broker."""
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", broker)
    return run


_numbers = count()


@pytest.fixture
def topic(ask: Run) -> str:
    """A new topic with three partitions."""
    name = f"cli-{os.getpid()}-{next(_numbers)}"
    created = ask("topic", "create", name, "--partitions", "3", "--replication-factor", "1")
    assert created.code == 0, created
    return name
