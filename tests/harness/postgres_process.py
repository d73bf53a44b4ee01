"""A PostgreSQL of its own for tests: a new data folder, a free port, a database per test.

    with PostgresProcess() as postgres:
        address = postgres.new_database()

PostgreSQL refuses to run as root; there it runs as the user `postgres`, who comes with the package.
That user can't enter pytest's folders, hence a folder of its own. Data is not synced to disk unless
the settings say so: tests kill processes, they do not cut the power.
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

from harness.broker_process import HOST
from harness.server_process import ServerProcess, install_or_skip

_SETTINGS = {"fsync": "off", "max_connections": "60", "shared_buffers": "64MB"}


def _program(name: str) -> Path | None:
    """Debian has the server's programs off the path, a folder for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    on_path = shutil.which(name)
    return found[-1] if found else Path(on_path) if on_path else None


def require_postgres() -> None:
    install_or_skip("postgresql", _program("initdb"))


class PostgresProcess(ServerProcess):
    """See the module's text."""

    name = "postgres"

    def __init__(self, settings: Mapping[str, str] = _SETTINGS) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="millstream-postgres-")))
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

    def start(self) -> None:
        if not (self.folder / "data").exists():
            make = [*self._as_user, str(_program("initdb")), "-D", str(self.folder / "data")]
            make += ["-U", "millstream", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
            result = subprocess.run(make, capture_output=True, text=True, cwd=self.folder)
            assert result.returncode == 0, result.stderr
        super().start()

    def answers(self) -> bool:
        try:
            psycopg.connect(self.address("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def address(self, database: str) -> str:
        return f"postgresql://millstream@{HOST}:{self.port}/{database}"

    def new_database(self) -> str:
        """The address of an empty one."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.address(name)

    def stop(self) -> None:
        if self._process is not None:
            # The immediate way down: nobody needs the data any more.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(90)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)
