"""A read-process-write program of any client that waits at the points where a kill matters.

A processor reads the input topic in a group. For the records of one poll it writes the same values
to the same partitions of the output topic and commits the positions, in one transaction. Keys
identify the writer: `<attempt>.<number of the transaction>`.

At each point it writes `<point> <number> <count of records>` and waits for a line:

    polled   the transaction has begun, nothing is sent
    sent     all records are acknowledged
    ready    so are the positions; EndTxn is next
    ended    the response to EndTxn arrived

A processor exits on errors; the next one starts where the last committed transaction ended.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transactions_clients.program import Program

POINTS = ("polled", "sent", "ready", "ended")
POINT_SECONDS_MAX = 60.0


class StuckError(AssertionError):
    """A processor is silent for too long."""


class Reached(NamedTuple):
    """The point at which a processor waits. `key` is the key of the transaction's records."""

    point: str
    key: str
    records: int


class Processor:
    """One processor process."""

    def __init__(
        self, program: Program, arguments: Sequence[str], attempt: int, folder: Path
    ) -> None:
        self.attempt = attempt
        self._errors = folder / f"processor-{attempt}.errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*program.command, *arguments, str(attempt)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **program.environment},
            )
        self._last: Reached | None = None
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def has_news(self) -> bool:
        """Whether `next_point` returns at once."""
        return not self._lines.empty()

    def next_point(self, seconds_max: float = POINT_SECONDS_MAX) -> Reached | None:
        """Return the next point; None if the process has exited. Raise StuckError after a
        timeout."""
        try:
            line = self._lines.get(timeout=seconds_max)
        except queue.Empty:
            where = f"stuck after {self._last}" if self._last else "stuck before its first point"
            raise StuckError(f"the processor is {where}: {self.last_words()}") from None
        if not line:
            return None
        point, number, count = line.decode().split()
        assert point in POINTS
        self._last = Reached(point, f"{self.attempt}.{number}", int(count))
        return self._last

    def go(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            # The processor exited while it waited; `next_point` returns None.
            return

    def kill(self) -> None:
        """Kill the process with SIGKILL; it may have exited already."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                # The process did not read the last line.
                continue

    def last_words(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]
