"""Apicurio Registry, a schema registry that has Confluent's REST API, as a process for tests."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.process.broker_process import HOST, free_port
from harness.tool.java import CACHE, JVM, require_java
from millstream.process.server_process import ServerProcess

_FOLDER = CACHE / "schema-registry"


def require_registry() -> None:
    """Skip the calling test, with the reason, where Maven Central cannot be reached."""
    require_java("schema-registry")


class RegistryProcess(ServerProcess):
    """A registry that keeps its schemas in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__("schema registry", folder / "registry.log")
        self._port = free_port()
        self.url = f"http://{HOST}:{self._port}/apis/ccompat/v7"

    def command(self) -> Sequence[str]:
        (jar,) = _FOLDER.glob("*-runner.jar")
        return [*JVM, "-jar", str(jar)]

    def environment(self) -> Mapping[str, str]:
        address = {"QUARKUS_HTTP_HOST": HOST, "QUARKUS_HTTP_PORT": str(self._port)}
        return {**os.environ, **address}

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
