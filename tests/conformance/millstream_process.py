"""A Millstream broker as a child process over one folder, that can be stopped, killed and started
again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOST = "127.0.0.1"
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class MillstreamProcess:
    """`arguments` go to `millstream serve` as they are."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._arguments = arguments
        self._port = free_port()
        self._http_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def _log(self) -> Path:
        return self.folder / "process.log"

    def start(self) -> None:
        program = str(Path(sys.executable).with_name("millstream"))
        where = ["--data", str(self.data), "--listen", self.bootstrap]
        http = ["--http", f"{HOST}:{self._http_port}"]
        # Every variable with this prefix is a setting of the broker.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_")}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [program, "serve", *where, *http, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        self._wait_until_listening()

    def _wait_until_listening(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection((HOST, self._port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        tail = self._log.read_text(errors="replace")[-3000:]
        self.kill()
        raise AssertionError(f"the broker does not listen on {self.bootstrap}:\n{tail}")

    def stop(self) -> None:
        """Asks the broker to stop, and fails if it does not end cleanly in time."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        assert code == 0, self._log.read_text(errors="replace")[-3000:]

    def printed(self) -> str:
        """All that the broker has written to its output, over all its starts."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
