"""A Millstream broker as a child process: `millstream serve` over one data folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.process.port import HOST, free_port
from millstream.process.readiness import responds
from millstream.process.server_process import START_SECONDS_MAX, ServerProcess


class BrokerEndpoints(NamedTuple):
    """The addresses of a broker: for clients, and for metrics and health."""

    host: str
    port: int
    http_port: int

    @classmethod
    def free(cls) -> BrokerEndpoints:
        """Return endpoints on free ports of this machine."""
        return cls(HOST, free_port(), free_port())


class BrokerServer(ServerProcess):
    """`settings` are broker settings by their Kafka names. The endpoints outlive restarts."""

    def __init__(
        self,
        name: str,
        folder: Path,
        endpoints: BrokerEndpoints,
        settings: Mapping[str, object],
        start_seconds_max: float = START_SECONDS_MAX,
    ) -> None:
        super().__init__(name, folder / f"{name}.log", start_seconds_max)
        self.data = folder / name
        self.host, self.port, self.http_port = endpoints
        self.settings = dict(settings)
        #: A TOML file with more settings. Secrets belong here: everybody sees a command line.
        self.config_file: Path | None = None
        #: The bearer token of the HTTP port, if it needs one.
        self.http_token: str | None = None
        #: The listeners, as NAME://host:port; by default one without encryption at `bootstrap`.
        self.listeners: Sequence[str] = ()
        #: The Python that runs the broker: another one has another version of Millstream.
        self.python = sys.executable

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    def command(self) -> Sequence[str]:
        command = [self.python, "-m", "millstream.cli.main", "serve", "--data", str(self.data)]
        for address in self.listeners or (self.bootstrap,):
            command += ["--listen", address]
        command += ["--http", f"{self.host}:{self.http_port}"]
        if self.config_file is not None:
            command += ["--config", str(self.config_file)]
        for name, value in self.settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--set", f"{name}={text}"]
        return command

    def is_ready(self) -> bool:
        return responds(f"{self.http_url}/readyz", self.http_token)
