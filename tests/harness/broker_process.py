"""A broker as a child process over one data folder: started, killed, stopped and started again.

    with BrokerProcess(tmp_path, settings={"num.partitions": 4}) as broker:
        broker.kill()
        broker.start()

Ports are chosen once, so clients find a restarted broker where it was. All that the process says
goes to `broker.log` beside the data folder; its tail is part of every failure reported from here.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

HOST = "127.0.0.1"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 90.0
_TAIL_CHARACTERS = 6000
#: For brokers that many tests share: records with old timestamps stay until nobody needs them.
KEEPS_OLD_RECORDS = {"log.initial.task.delay.ms": 86_400_000}
#: Below the range from which the kernel takes ports for outgoing connections.
_PORTS = range(11_000, 32_000)


def free_port() -> int:
    """A port that nobody listens on, and that no outgoing connection will take meanwhile."""
    chooser = random.SystemRandom()
    while True:
        port = chooser.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port


def wait_until(condition: Callable[[], object], what: str, seconds_max: float = 60.0) -> None:
    """Return as soon as `condition()` is true; fail with `what` after `seconds_max`."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds_max} s for {what}"
        time.sleep(0.01)


def _environment() -> dict[str, str]:
    """Ours without settings for a broker: a test gives those itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM")}
    return {**kept, "PYTHONFAULTHANDLER": "1"}


class BrokerProcess:
    """`settings` are broker settings by their Kafka names, `prefix` a command that becomes the
    broker in the end; see the module's text."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        data: Path | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
        prefix: Sequence[str] = (),
    ) -> None:
        self.data = data or folder / "data"
        self.log_path = folder / "broker.log"
        self.host = HOST
        self.port = free_port()
        self.http_port = free_port()
        self.settings = dict(settings or {})
        self.start_seconds_max = start_seconds_max
        self.prefix = list(prefix)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_told_to_stop = False
        #: Of a start that failed, where the process ended by itself.
        self.exit_code: int | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        if error is not None:
            error.add_note(f"the broker's last words:\n{self.log_tail()}")

    # Its life

    def start(self, *, wait: bool = True) -> None:
        assert self._process is None, "the broker is running already"
        command = [*self.prefix, str(Path(sys.executable).with_name("millstream")), "serve"]
        command += ["--data", str(self.data), "--listen", self.bootstrap]
        command += ["--http", f"{self.host}:{self.http_port}"]
        for name, value in self.settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--set", f"{name}={text}"]
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_seconds_max
        while time.monotonic() < deadline and self.is_alive():
            if self.is_ready():
                return
            time.sleep(0.01)
        state = "is not ready" if self.is_alive() else "ended"
        self.exit_code = None if self._process is None else self._process.poll()
        self.kill()
        raise AssertionError(f"the broker on {self.bootstrap} {state}:\n{self.log_tail()}")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://{self.host}:{self.http_port}/readyz", timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """`kill -9`; nothing if it does not run."""
        process, self._process = self._process, None
        self._is_told_to_stop = False
        if process is not None:
            process.kill()
            process.wait()

    def tell_to_stop(self) -> None:
        """Ask it to stop, without waiting for that."""
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGTERM)
        self._is_told_to_stop = True

    def pause(self) -> None:
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGCONT)

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Ask it to stop; fail unless it ends in time with exit code 0."""
        process, self._process = self._process, None
        assert process is not None, "the broker is not running"
        if not self._is_told_to_stop:
            # A second signal would kill a broker that is about to exit.
            process.send_signal(signal.SIGTERM)
        self._is_told_to_stop = False
        try:
            code = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker does not stop:\n{self.log_tail()}") from None
        assert code == 0, f"the broker ended with code {code}:\n{self.log_tail()}"

    # What can be seen of it

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        return self.log_text()[-_TAIL_CHARACTERS:]

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def open_descriptors(self) -> int:
        return int(psutil.Process(self.pid).num_fds())

    def metric(self, name: str) -> float:
        """The sum of a metric's rows, or 0 where it has none. `name` may go on into the labels."""
        url = f"http://{self.host}:{self.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        rows = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in rows)
