"""A Redis of its own for tests, in a folder and on a free port."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import redis

from harness.broker_process import HOST
from harness.server_process import ServerProcess, install_or_skip


def require_redis() -> None:
    program = shutil.which("redis-server")
    install_or_skip("redis-server", Path(program) if program else None)


class RedisProcess(ServerProcess):
    """See the module's text."""

    name = "redis"

    def command(self) -> Sequence[str]:
        server = ["redis-server", "--port", str(self.port), "--bind", HOST]
        return [*server, "--dir", str(self.folder), "--save", "", "--appendonly", "no"]

    def answers(self) -> bool:
        with redis.Redis(host=HOST, port=self.port) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.ConnectionError:
                return False

    @property
    def address(self) -> str:
        return f"redis://{HOST}:{self.port}/0"
