"""A private Redis server for tests, in a folder and on a free port."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import redis

from harness.process.broker_process import HOST, free_port
from harness.tool.system_package import install_or_skip
from millstream.process.server_process import ServerProcess


def require_redis() -> None:
    """Skip the calling test, with the reason, where Redis cannot be installed."""
    install_or_skip("redis-server", lambda: shutil.which("redis-server"))


class RedisProcess(ServerProcess):
    """A Redis server that keeps its data in memory only."""

    def __init__(self, folder: Path) -> None:
        super().__init__("redis", folder / "redis.log")
        self.folder = folder
        self.port = free_port()

    def command(self) -> Sequence[str]:
        server = ["redis-server", "--port", str(self.port), "--bind", HOST]
        return [*server, "--dir", str(self.folder), "--save", "", "--appendonly", "no"]

    def is_ready(self) -> bool:
        with redis.Redis(host=HOST, port=self.port) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.ConnectionError:
                return False

    @property
    def address(self) -> str:
        return f"redis://{HOST}:{self.port}/0"
