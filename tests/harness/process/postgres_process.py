"""A private PostgreSQL server for tests: a new data folder, a free port, a database per test.

    with PostgresProcess() as postgres:
        address = postgres.new_database()

PostgreSQL refuses to run as root, so under root it runs as the package's user `postgres`. That user
cannot enter pytest's folders, so the server has a temporary folder of its own. Data is not synced
to disk unless the settings say so: tests kill processes but do not cut the power.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import psycopg

from harness.process.broker_process import HOST, free_port
from harness.tool.system_package import install_or_skip
from millstream.process.server_process import STOP_SECONDS_MAX, ServerProcess

_SETTINGS = {"fsync": "off", "max_connections": "60", "shared_buffers": "64MB"}


def _program(name: str) -> Path | None:
    """Debian keeps the server's programs off the path, in a folder per version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    on_path = shutil.which(name)
    return found[-1] if found else Path(on_path) if on_path else None


def require_postgres() -> None:
    """Skip the calling test, with the reason, where PostgreSQL cannot be installed."""
    install_or_skip("postgresql", lambda: _program("initdb"))


class PostgresProcess(ServerProcess):
    """A PostgreSQL server whose folder is deleted when it stops."""

    def __init__(self, settings: Mapping[str, str] = _SETTINGS) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
        super().__init__("postgres", self.folder / "postgres.log")
        self.port = free_port()
        self._settings = settings
        self._numbers = count()
        self._as_user: list[str] = []
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]

    def command(self) -> Sequence[str]:
        server = [*self._as_user, str(_program("postgres")), "-D", str(self.folder / "data")]
        server += ["-p", str(self.port), "-h", HOST, "-k", str(self.folder)]
        for name, value in self._settings.items():
            server += ["-c", f"{name}={value}"]
        return server

    def start(self, *, wait: bool = True) -> None:
        if not (self.folder / "data").exists():
            make = [*self._as_user, str(_program("initdb")), "-D", str(self.folder / "data")]
            make += ["-U", "millstream", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
            result = subprocess.run(make, capture_output=True, text=True, cwd=self.folder)
            assert result.returncode == 0, result.stderr
        super().start(wait=wait)

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.address("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def address(self, database: str) -> str:
        return f"postgresql://millstream@{HOST}:{self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database and return its address."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> int | None:
        """Shut down immediately, without a checkpoint, and delete the folder."""
        if self.is_alive():
            # A killed server leaves its worker processes behind; SIGQUIT ends them too.
            os.kill(self.pid, signal.SIGQUIT)
            self._is_terminating = True
        code = super().stop(seconds_max)
        shutil.rmtree(self.folder, ignore_errors=True)
        return code

    def __exit__(self, *_: object) -> None:
        self.stop()
