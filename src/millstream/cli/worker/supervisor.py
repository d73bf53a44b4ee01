"""Starts worker processes, restarts those that die, reloads them, and drains them at the end.

    state of a process
    running   -- exits --> waiting -- backoff --> running
    running   -- drain or reload: SIGTERM --> exits --> ended, or running with the new code

The backoff doubles with each exit, from 1 s to 60 s, and starts again after a minute of running. A
process that cannot start because of its target (exit codes 2 and 3) is not restarted: the command
ends with that code, or waits for a change of the files with --reload.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import typer

from millstream.cli.support.failure import ExitCode
from millstream.cli.worker.process import WorkerProcess
from millstream.cli.worker.report import ProcessReport, ReportTotals, totals_of
from millstream.env.termination import on_termination

_logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_BACKOFF_S: Final = 1.0
_BACKOFF_S_MAX: Final = 60.0
#: A process that ran for this long starts with the first backoff again.
_STABLE_S: Final = 60.0
#: A process that has not reported for this long counts as stuck.
_SILENT_S: Final = 30.0
_TARGET_CODES: Final = (ExitCode.USAGE, ExitCode.NOT_FOUND)


@dataclass(slots=True)
class Slot:
    """One worker process, and when the supervisor starts it again."""

    process: WorkerProcess
    exits: int = 0
    #: When to start the process again. None: it runs, or it is not started again.
    start_at: float | None = None
    #: The exit code of a target that cannot be started.
    target_code: int | None = None


class WorkerSupervisor:
    """Runs `count` processes for `target`. `has_changed` tells whether to reload."""

    def __init__(
        self,
        target: str,
        count: int,
        log_level: str,
        has_changed: Callable[[], bool] | None = None,
    ) -> None:
        self._slots = [
            Slot(WorkerProcess(target, number, log_level)) for number in range(1, count + 1)
        ]
        self._has_changed = has_changed
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        #: Counters of processes that ended.
        self._ended = ReportTotals()
        self.restarts = 0
        self.reloads = 0

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C, then drain. The second signal kills the processes."""
        try:
            with on_termination(self._begin_drain, interrupt_at_second=True):
                for slot in self._slots:
                    slot.process.start()
                while not self._stopping.wait(_LOOK_S):
                    self._look()
                self._drain()
        except KeyboardInterrupt:
            _logger.warning("Second signal: the workers are killed. Their jobs will run again.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        finally:
            for slot in self._slots:
                slot.process.kill()

    # What health and metrics need; called by other threads

    def totals(self) -> ReportTotals:
        """Return the sums of all processes."""
        with self._lock:
            return totals_of(self._ended, self._reports())

    @property
    def group(self) -> str:
        """The group of the workers; empty until one has reported."""
        return next((report.group for report in self._reports()), "")

    @property
    def running(self) -> int:
        """The number of processes that run."""
        return sum(slot.process.is_running for slot in self._slots)

    def problem(self) -> str | None:
        """Return why the workers are not healthy, or None."""
        if not self.running:
            return "no worker process runs"
        silent = [slot.process for slot in self._slots if slot.process.silence_s > _SILENT_S]
        if silent:
            return f"worker {silent[0].number} has not reported for {silent[0].silence_s:.0f} s"
        return None

    def reason_not_ready(self) -> str | None:
        """Return why the workers are not ready, or None."""
        if self._stopping.is_set():
            return "the workers finish their jobs and shut down"
        for slot in self._slots:
            report = slot.process.report
            if not slot.process.is_running:
                return f"worker {slot.process.number} does not run"
            if report is None or not report.is_ready:
                return f"worker {slot.process.number} has not joined its group yet"
        return None

    def _reports(self) -> list[ProcessReport]:
        found = (slot.process.report for slot in self._slots)
        return [report for report in found if report is not None]

    # The loop

    def _begin_drain(self) -> None:
        self._stopping.set()

    def _look(self) -> None:
        if self._has_changed is not None and self._has_changed():
            self._reload()
        now = time.monotonic()
        for slot in self._slots:
            if slot.start_at is not None and slot.start_at <= now:
                slot.start_at = None
                self.restarts += 1
                slot.process.start()
            elif slot.start_at is None and slot.target_code is None:
                code = slot.process.exit_code()
                if code is not None:
                    self._exited(slot, code, now)
        codes = [slot.target_code for slot in self._slots if slot.target_code is not None]
        if codes and self._has_changed is None:
            self._begin_drain()
            self._terminate()
            raise typer.Exit(codes[0])

    def _exited(self, slot: Slot, code: int, now: float) -> None:
        process = slot.process
        has_reported = process.report is not None
        self._fold(process)
        if code in _TARGET_CODES and not has_reported:
            slot.target_code = code
            if self._has_changed is not None:
                _logger.warning("The worker cannot start: change its files to try again.")
            return
        slot.exits = 1 if process.age_s >= _STABLE_S else slot.exits + 1
        wait_s = min(_BACKOFF_S_MAX, _BACKOFF_S * 2.0 ** (slot.exits - 1))
        slot.start_at = now + wait_s
        _logger.error(
            "Worker %d (process %d) %s. It is restarted in %.0f s.",
            process.number,
            process.pid,
            _exit_text(code),
            wait_s,
        )

    def _reload(self) -> None:
        _logger.info("Files have changed: the workers finish their jobs and are reloaded.")
        self._terminate()
        if self._stopping.is_set():
            return
        self.reloads += 1
        for slot in self._slots:
            slot.exits, slot.start_at, slot.target_code = 0, None, None
            slot.process.start()

    def _drain(self) -> None:
        _logger.info("The workers finish their running jobs. A second signal kills them.")
        self._terminate()

    def _terminate(self) -> None:
        """Let all processes finish, and wait for them."""
        for slot in self._slots:
            slot.process.terminate()
        for slot in self._slots:
            slot.process.wait()
            self._fold(slot.process)

    def _fold(self, process: WorkerProcess) -> None:
        """Keep the counters of a process that ended."""
        with self._lock:
            report = process.take_report()
            if report is not None:
                self._ended.add_counters(report)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
