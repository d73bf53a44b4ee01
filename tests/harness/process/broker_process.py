"""A broker as a child process over one data folder, for tests that stop, kill and restart it.

    with BrokerProcess(tmp_path, settings={"num.partitions": 4}) as broker:
        broker.kill()
        broker.start()

The ports stay the same, so clients find a restarted broker again. The broker's output goes to
`broker.log` beside the data folder; its tail is part of every failure reported from here.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from millstream.broker.config.broker_config import definition_of
from millstream.process.broker_server import BrokerEndpoints, BrokerServer
from millstream.process.port import HOST, free_port
from millstream.process.server_process import START_SECONDS_MAX, STOP_SECONDS_MAX, ServerFailed

__all__ = [
    "HOST",
    "KEEPS_OLD_RECORDS",
    "START_SECONDS_MAX",
    "STOP_SECONDS_MAX",
    "BrokerProcess",
    "ServerFailed",
    "free_port",
    "wait_until",
]

#: For brokers that many tests share: records with old timestamps are kept for a day.
KEEPS_OLD_RECORDS = {"log.initial.task.delay.ms": 86_400_000}


def wait_until(condition: Callable[[], object], what: str, seconds_max: float = 60.0) -> None:
    """Return as soon as `condition()` is true; fail with `what` after `seconds_max`."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds_max} s for {what}"
        time.sleep(0.01)


def _is_measured() -> bool:
    """Whether coverage measures child processes. A process that is killed writes no figures."""
    return "COVERAGE_PROCESS_CONFIG" in os.environ


def _is_secret(name: str) -> bool:
    definition = definition_of(name)
    return definition is not None and definition.is_sensitive


class BrokerProcess(BrokerServer):
    """A broker with `settings` by their Kafka names.

    `prefix` is a command that sets up the broker's surroundings and then executes the broker.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        data: Path | None = None,
        start_seconds_max: float = START_SECONDS_MAX,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(
            "broker", folder, BrokerEndpoints.free(), settings or {}, start_seconds_max
        )
        self.data = data or folder / "data"
        self.prefix = list(prefix)
        token = self.settings.get("http.bearer.token")
        self.http_token = None if token is None else str(token)
        self._move_secrets(folder / "secrets.toml")

    def _move_secrets(self, file: Path) -> None:
        """Give secret settings to the broker by a file: its command line takes none."""
        secrets = {name: self.settings[name] for name in self.settings if _is_secret(name)}
        if secrets:
            lines = [f"{json.dumps(name)} = {json.dumps(str(secrets[name]))}" for name in secrets]
            file.write_text("\n".join(lines))
            self.config_file = file
            self.settings = {
                name: text for name, text in self.settings.items() if name not in secrets
            }

    def command(self) -> Sequence[str]:
        return [*self.prefix, *super().command()]

    def environment(self) -> Mapping[str, str]:
        """Return this process's variables without broker settings: each test gives its own."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM")
        }
        return {**kept, "PYTHONFAULTHANDLER": "1"}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and _is_measured():
            super().stop()
        super().__exit__(kind, error, traceback)

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Stop the broker; fail unless it exits with code 0 in time."""
        code = super().stop(seconds_max)
        assert code is not None, "the broker is not running"
        assert code == 0, f"the broker exited with code {code}:\n{self.log_tail()}"
        return code

    # Measurements

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def open_descriptors(self) -> int:
        return int(psutil.Process(self.pid).num_fds())

    def metrics_text(self) -> str:
        """Return all metrics, as Prometheus reads them."""
        request = urllib.request.Request(f"{self.http_url}/metrics")
        if self.http_token is not None:
            request.add_header("Authorization", f"Bearer {self.http_token}")
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(response.read().decode())

    def metric_names(self) -> set[str]:
        """Return the names of all metrics, also of those without rows."""
        lines = self.metrics_text().splitlines()
        return {line.split()[2] for line in lines if line.startswith("# TYPE ")}

    def metric(self, name: str) -> float:
        """Return the sum of a metric's rows, 0 if it has none. `name` may include labels."""
        lines = self.metrics_text().splitlines()
        rows = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in rows)
