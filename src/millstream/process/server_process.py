"""A server as a child process: start, wait until it is ready, signal, stop, kill, log tail.

A subclass says how the server is started and how to tell that it is ready. The output of every run
is appended to one log file; its tail is part of every ServerFailed.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

START_SECONDS_MAX: Final = 90.0
STOP_SECONDS_MAX: Final = 90.0
_POLL_S: Final = 0.005
_TAIL_CHARACTERS: Final = 6000


class ServerFailed(Exception):  # noqa: N818 - names what happened to the server
    """A server exited while starting, or did not get ready or stop in time."""


class ServerProcess:
    """One child process, which may be started again after it was stopped or killed."""

    #: The process leads a session of its own, so that Ctrl-C in a terminal does not reach it.
    is_detached = False

    def __init__(
        self, name: str, log_path: Path, start_seconds_max: float = START_SECONDS_MAX
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.start_seconds_max = start_seconds_max
        #: The exit code of a process that exited by itself while it was starting.
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_terminating = False

    # What a subclass defines

    def command(self) -> Sequence[str]:
        """Return the command line of the server."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether the running server accepts requests."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str] | None:
        """Return the environment variables of the server; None means those of this process."""
        return None

    def working_folder(self) -> Path | None:
        """Return the folder the server runs in; None means that of this process."""
        return None

    # State

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        """The exit code of a process that was not stopped on purpose; None while it runs."""
        return None if self._process is None else self._process.poll()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def has_exited(self) -> bool:
        """Whether the process exited although it was neither stopped nor killed on purpose."""
        return self._process is not None and self._process.poll() is not None

    # Start and stop

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
            error.add_note(f"the end of {self.name}'s log:\n{self.log_tail()}")

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait`, return when it is ready."""
        assert self._process is None, f"{self.name} is already running"
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
                cwd=self.working_folder(),
                start_new_session=self.is_detached,
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(
        self, seconds_max: float | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Return once the server is ready, or once `is_cancelled`.

        Kills the process and raises ServerFailed if it exits or is late."""
        limit = self.start_seconds_max if seconds_max is None else seconds_max
        deadline = time.monotonic() + limit
        while self.is_alive() and time.monotonic() < deadline:
            if self.is_ready() or is_cancelled():
                return
            time.sleep(_POLL_S)
        self.exit_code = self.returncode
        state = f"is not ready after {limit:g} s" if self.is_alive() else "ended while starting"
        self.kill()
        raise ServerFailed(f"{self.name} {state}; {self.log_path} ends with:\n{self.log_tail()}")

    def terminate(self) -> None:
        """Send SIGTERM once, without waiting: a second one would kill a broker at once."""
        if self.is_alive() and not self._is_terminating:
            self._running().send_signal(signal.SIGTERM)
            self._is_terminating = True

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> int | None:
        """Terminate the process and return its exit code, or None if it was not running.

        A process that does not exit in time is killed."""
        self.terminate()
        process, self._process = self._process, None
        self._is_terminating = False
        if process is None:
            return None
        try:
            return process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return -signal.SIGKILL

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit, if the process runs."""
        process, self._process = self._process, None
        self._is_terminating = False
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Return the exit code once the process exits by itself."""
        return self._running().wait()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} is not running"
        return self._process

    # Log

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        return self.log_text()[-_TAIL_CHARACTERS:]


def start_all(servers: Iterable[ServerProcess], seconds_max: float | None = None) -> None:
    """Start servers at the same time and wait until all are ready."""
    started = list(servers)
    for server in started:
        server.start(wait=False)
    for server in started:
        server.wait_until_ready(seconds_max)


def stop_all(servers: Iterable[ServerProcess], seconds_max: float = STOP_SECONDS_MAX) -> None:
    """Stop servers at the same time."""
    stopped = list(servers)
    deadline = time.monotonic() + seconds_max
    for server in stopped:
        server.terminate()
    for server in stopped:
        server.stop(max(0.0, deadline - time.monotonic()))
