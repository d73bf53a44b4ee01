"""A worker of Kafka Connect in distributed mode: a process, and its REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.process.broker_process import HOST, free_port, wait_until
from harness.process.java_process import JavaProcess

_START_SECONDS_MAX = 120.0
#: A worker's response during a rebalance, and for a connector without a status.
_CONFLICT = 409
_NOT_FOUND = 404
#: Sources write in transactions together with their offsets; sinks read what is committed.
_SETTINGS = {
    "group.id": "connect",
    "exactly.once.source.support": "enabled",
    "consumer.isolation.level": "read_committed",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "plugin.discovery": "service_load",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "offset.storage.partitions": 4,
    "status.storage.topic": "connect-status",
    "status.storage.partitions": 2,
    "offset.flush.interval.ms": 500,
    # A killed worker is noticed soon, and its tasks move without delay.
    "session.timeout.ms": 3000,
    "heartbeat.interval.ms": 300,
    "scheduled.rebalance.max.delay.ms": 0,
    "producer.transaction.timeout.ms": 5000,
}


class Worker(JavaProcess):
    """A worker process. `replicas` is the replication factor of Connect's internal topics."""

    def __init__(self, name: str, folder: Path, bootstrap: str, replicas: int) -> None:
        own = folder / name
        settings = own / "worker.properties"
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        super().__init__(own, main, str(settings))
        self._address = f"http://{HOST}:{free_port()}"
        chosen = {"bootstrap.servers": bootstrap, "listeners": self._address}
        topics = ("config", "offset", "status")
        chosen |= {f"{topic}.storage.replication.factor": str(replicas) for topic in topics}
        lines = [f"{key}={value}" for key, value in {**_SETTINGS, **chosen}.items()]
        settings.write_text("\n".join(lines))

    def start(self) -> None:
        super().start()
        wait_until(self._is_ready, "the worker to be ready", _START_SECONDS_MAX)

    def _is_ready(self) -> bool:
        self.check_running()
        try:
            return self._call("GET", "/health")["status"] == "healthy"
        except OSError:
            return False

    def put_connector(self, name: str, config: Mapping[str, str]) -> None:
        """Create or change a connector; retry while the worker is joining its group."""

        def is_taken() -> bool:
            try:
                self._call("PUT", f"/connectors/{name}/config", dict(config))
            except urllib.error.HTTPError as error:
                if error.code != _CONFLICT:
                    raise
                return False
            return True

        wait_until(is_taken, f"connector {name} to be taken")

    def states(self, name: str) -> list[str]:
        """Return the states of a connector and its tasks."""
        try:
            status = self._call("GET", f"/connectors/{name}/status")
        except urllib.error.HTTPError as error:
            if error.code != _NOT_FOUND:
                raise
            return []
        rows = [status["connector"], *status["tasks"]]
        assert all(row["state"] != "FAILED" for row in rows), rows
        return [row["state"] for row in rows]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._address + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)
