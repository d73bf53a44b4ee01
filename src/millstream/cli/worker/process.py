"""One worker process as the supervisor sees it: its start, its reports and its end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec

from millstream.cli.worker.report import ProcessReport

_logger = logging.getLogger(__name__)


class WorkerProcess:
    """A process that can be started again after it ended.

    It has a process group of its own, so that Ctrl-C reaches the supervisor only.
    """

    def __init__(self, target: str, number: int, log_level: str) -> None:
        self.number = number
        self._target = target
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._report: ProcessReport | None = None
        self._started_at = 0.0
        self._reported_at = 0.0

    def start(self) -> None:
        """Start the process. The previous one has ended."""
        reading, writing = os.pipe()
        arguments = [self._target, str(self.number), str(writing), self._log_level]
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- this module, by its own name
                [sys.executable, "-m", "millstream.cli.worker.child", *arguments],
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        finally:
            os.close(writing)
        self._report = None
        self._started_at = self._reported_at = time.monotonic()
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def report(self) -> ProcessReport | None:
        """The last report of the process, None before the first one."""
        return self._report

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at

    @property
    def silence_s(self) -> float:
        """Seconds since the last report of a process that runs."""
        return time.monotonic() - self._reported_at if self.is_running else 0.0

    def exit_code(self) -> int | None:
        """Return the exit code once the process has ended and all reports are read."""
        process = self._process
        if process is None or process.poll() is None:
            return None
        if self._reader is not None:
            self._reader.join()
        return process.returncode

    def take_report(self) -> ProcessReport | None:
        """Return the last report, and forget it."""
        report, self._report = self._report, None
        return report

    def terminate(self) -> None:
        """Let the process finish its running jobs."""
        if self.is_running and self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            self._process.wait()
            self.exit_code()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            if self.is_running:
                self._process.kill()
            self.wait()

    def _read(self, descriptor: int) -> None:
        with open(descriptor, "rb") as stream:
            for line in stream:
                try:
                    self._report = msgspec.json.decode(line, type=ProcessReport)
                except msgspec.MsgspecError as error:
                    # The last line of a process that was killed may be cut off.
                    _logger.debug("Worker %d reported %r: %s", self.number, line, error)
                else:
                    self._reported_at = time.monotonic()
