"""One worker process: `python -m millstream.cli.worker.child TARGET NUMBER REPORT_FD LEVEL`.

The supervisor starts it. It runs the worker until SIGTERM, and writes reports to the file
descriptor. If a write fails because the pipe has no reader, the supervisor has died: the process
then finishes its running jobs and exits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.cli.support.failure import CommandError, ExitCode, say_error
from millstream.cli.worker.report import OUTCOMES, Durations, ProcessReport
from millstream.cli.worker.target import load_worker

if TYPE_CHECKING:
    from millstream.client.worker import Worker

_logger = logging.getLogger(__name__)

_REPORT_S: Final = 0.25
#: How often one process measures the group's lag, which takes a few requests.
_LAG_S: Final = 15.0


class Reporter:
    """Collects and writes the reports of this process."""

    def __init__(self, worker: Worker, descriptor: int, *, measures_lag: bool) -> None:
        self._worker = worker
        self._descriptor = descriptor
        self._durations: dict[str, Durations] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._lag: tuple[int, int] | None = None
        self._threads = [threading.Thread(target=self._write_reports, daemon=True)]
        if measures_lag:
            self._threads.append(threading.Thread(target=self._measure_lag, daemon=True))

    def start(self) -> None:
        """Start to observe handlers and to report."""
        self._worker.observe(self._observe)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Write the last report."""
        self._stopping.set()
        self._threads[0].join()

    def _observe(self, topic: str, seconds: float) -> None:
        with self._lock:
            durations = self._durations.get(topic)
            if durations is None:
                durations = self._durations[topic] = Durations()
            durations.observe(seconds)

    def _write_reports(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(_REPORT_S)
            try:
                self._write(self._report())
            except OSError as error:
                if not is_last:
                    _logger.warning("The supervisor is gone (%s): finishing running jobs.", error)
                    self._worker.stop()
                return

    def _write(self, report: ProcessReport) -> None:
        line = memoryview(msgspec.json.encode(report) + b"\n")
        while line:
            line = line[os.write(self._descriptor, line) :]

    def _report(self) -> ProcessReport:
        worker = self._worker
        lag, wanted = self._lag or (None, None)
        with self._lock:
            durations = {
                topic: Durations(list(each.counts), each.seconds)
                for topic, each in self._durations.items()
            }
        return ProcessReport(
            group=worker.group_id,
            is_ready=worker.is_ready,
            counts={name: getattr(worker.counts, name) for name in OUTCOMES},
            in_progress=worker.in_progress,
            held=worker.held,
            durations=durations,
            lag=lag,
            workers_wanted=wanted,
        )

    def _measure_lag(self) -> None:
        from millstream.client.error import MillstreamError

        while not self._stopping.wait(_LAG_S if self._lag else 1.0):
            if not self._worker.is_ready:
                continue
            try:
                hint = self._worker.hint()
            except MillstreamError as error:
                _logger.debug("The lag is unknown: %s", error)
            else:
                self._lag = (hint.lag, hint.workers)


def run(target: str, number: int, descriptor: int) -> int:
    """Run the worker. Return the exit code."""
    from millstream.client.error import UsageError

    try:
        worker = load_worker(target)
        worker.check()
        worker.number_process(number)
    except CommandError as failure:
        say_error(str(failure))
        return int(failure.code)
    except UsageError as error:
        say_error(f"{target}: {error}")
        return int(ExitCode.USAGE)
    reporter = Reporter(worker, descriptor, measures_lag=number == 1)
    reporter.start()
    try:
        worker.run()
    except UsageError as error:
        say_error(f"{target}: {error}")
        return int(ExitCode.USAGE)
    finally:
        reporter.stop()
    return 0


def main() -> int:
    target, number, descriptor, level = sys.argv[1:]
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=level.upper(),
        format=f"%(asctime)s.%(msecs)03dZ %(levelname)s worker {number}: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    return run(target, int(number), int(descriptor))


if __name__ == "__main__":
    sys.exit(main())
