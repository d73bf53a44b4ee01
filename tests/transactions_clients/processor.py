"""A read-process-write program of any client, stopped at the points where killing it matters.

A processor reads the input topic in a group; for what one poll gives it, it writes the same values
to the same partitions of the output topic and commits the positions, in one transaction. Keys say
who wrote: `<attempt>.<number of the transaction>`.

At each point it writes `<point> <number> <count of records>` and waits for a line:

    polled   the transaction has begun, nothing is sent
    sent     all records are acknowledged
    ready    so are the positions; EndTxn is next
    ended    EndTxn is answered

It does not handle errors: it ends with them, and whoever comes after it begins where the last
committed transaction ended.
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
    """A processor says nothing."""


class Reached(NamedTuple):
    """Where a processor waits. `key` is that of the records of this transaction."""

    point: str
    key: str
    records: int


class Processor:
    """One process, from its start to its death."""

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
        """Whether `next_point` has an answer at once."""
        return not self._lines.empty()

    def next_point(self, seconds_max: float = POINT_SECONDS_MAX) -> Reached | None:
        """Where it waits next; None if it has ended instead. StuckError if neither comes."""
        try:
            line = self._lines.get(timeout=seconds_max)
        except queue.Empty:
            where = f"stuck after {self._last}" if self._last else "stuck before it got anywhere"
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
            # It ended while it waited: `next_point` will tell.
            return

    def kill(self) -> None:
        """`kill -9`, also of one that has ended already."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                # What it was told last was never read.
                continue

    def last_words(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]
