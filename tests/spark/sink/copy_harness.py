"""Runs a streaming query under real Spark in a separate process, and kills it.

    with Copy(tmp_path) as copy:
        copy.feed(400)
        copy.driver.kill()
        copy.finish()

`Driver` is the process that runs `copy_program`, with its JVM, executors and Python workers.
`Checkpoint` reads the progress of the query from its files. `Copy` has both, and the broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from confluent_kafka import Producer

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient
from spark.sink.copy_program import Plan
from spark.sink.direct_query import committed

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
#: The deadline of one step on a busy machine.
SECONDS_MAX = 300.0
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Checkpoint:
    """The progress of a query. Spark writes offsets before a batch, and a commit after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def begun(self) -> int:
        """The last started batch, or -1."""
        return max(self._batches("offsets"), default=-1)

    @property
    def done(self) -> int:
        return max(self._batches("commits"), default=-1)

    def rows_done(self) -> int:
        """Return the number of rows in the finished batches."""
        batch = self.done
        if batch < 0:
            return 0
        offsets = json.loads((self.folder / "offsets" / str(batch)).read_text().splitlines()[2])
        return sum(number for topic in offsets.values() for number in topic.values())

    def seconds_of_a_batch(self) -> float:
        """Return the median duration of recent batches."""
        taken = [
            self._moment("commits", batch) - self._moment("offsets", batch)
            for batch in range(max(0, self.done - 8), self.done + 1)
        ]
        return statistics.median(taken) if taken else 1.0

    def _moment(self, what: str, batch: int) -> float:
        return (self.folder / what / str(batch)).stat().st_mtime

    def _batches(self, what: str) -> Iterator[int]:
        folder = self.folder / what
        if folder.exists():
            yield from (int(each.name) for each in folder.iterdir() if each.name.isdigit())


class Driver:
    """The driver process. `start` restarts it if it is dead."""

    def __init__(self, folder: Path, plan: Plan, environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-m", "spark.sink.copy_program", plan.encode()]
        self._environment = {**ENVIRONMENT, **environment}
        self.log_path = folder / "driver.log"
        self._sessions: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the driver unless it runs."""
        if self.is_alive():
            return
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        self._sessions.append(self._process.pid)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Kill all processes of this driver and of its earlier starts."""
        for session in self._sessions:
            wait_until(lambda session=session: not _kill_session(session), "processes to end")
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        """Pause the driver and all its child processes."""
        for each in self._all():
            each.suspend()

    def resume(self) -> None:
        for each in self._all():
            each.resume()

    def failures(self) -> int:
        """Return how often the query failed."""
        return self.log_path.read_text(errors="replace").count("the query failed")

    def kill(self) -> None:
        """Kill the driver and all its child processes."""
        self._kill(self._all())

    def kill_alone(self) -> None:
        """Kill only the driver. Executors and their workers run until they notice."""
        self._kill(self.core())

    def core(self) -> list[psutil.Process]:
        """Return the driver program and its JVM."""
        return [self._root(), *self._root().children()]

    def executors(self) -> list[psutil.Process]:
        return [each for each in self._below() if _EXECUTOR in _command(each)]

    def workers(self) -> list[psutil.Process]:
        """Return Spark's Python workers: of tasks, commits and sources."""
        return [
            each
            for each in self._below()
            if any(part.startswith("pyspark.") for part in _command(each))
        ]

    def _kill(self, processes: list[psutil.Process]) -> None:
        for each in processes:
            kill(each)
        assert self._process is not None
        self._process.wait()

    def _root(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def _all(self) -> list[psutil.Process]:
        return [self._root(), *self._below()]

    def _below(self) -> list[psutil.Process]:
        try:
            return self._root().children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _kill_session(session: int) -> bool:
    """Kill the processes of a session. Return whether there were any."""
    found = False
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(each.pid) == session and each.status() != psutil.STATUS_ZOMBIE:
                kill(each)
                found = True
    return found


class Copy:
    """A broker with the topics `in` and `out`, and a query that copies `in` to `out`."""

    def __init__(
        self, folder: Path, environment: dict[str, str] | None = None, **plan: Any
    ) -> None:
        self.broker = BrokerProcess(folder, {"auto.create.topics.enable": False})
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.plan = Plan(self.broker.bootstrap, str(self.checkpoint.folder), **plan)
        self._folder = folder
        self._environment = dict(environment or {})
        self.driver = Driver(folder, self.plan, self._environment)
        self._replaced: list[Driver] = []
        self.rows = 0

    def __enter__(self) -> Self:
        self.broker.start()
        try:
            with RawClient(self.broker.host, self.broker.port) as client:
                client.create_topic("in", 2)
                client.create_topic("out", 3)
        except BaseException:
            self.broker.kill()
            raise
        self._producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for driver in (self.driver, *self._replaced):
            driver.close()
        self.broker.__exit__(kind, error, traceback)
        if error is not None:
            log = self.driver.log_path.read_text(errors="replace")
            error.add_note(f"the end of the driver's log:\n{log[-4000:]}")

    def replace_driver(self) -> Driver:
        """Use a new driver with the same checkpoint. Return the old one, which may still run."""
        self._replaced.append(self.driver)
        folder = self._folder / f"driver-{len(self._replaced)}"
        folder.mkdir()
        self.driver = Driver(folder, self.plan, self._environment)
        return self._replaced[-1]

    def feed(self, batches: int = 1) -> None:
        """Send the rows of some batches, each with a unique value."""
        for number in range(self.rows, self.rows + batches * self.plan.rows_per_batch):
            self._producer.produce("in", str(number), str(number), partition=number % 2)
        assert self._producer.flush(SECONDS_MAX) == 0
        self.rows += batches * self.plan.rows_per_batch

    def wait_for_batch(self) -> None:
        """Wait until a batch is in progress."""

        def is_under_way() -> bool:
            self.driver.start()
            return self.checkpoint.begun > self.checkpoint.done and bool(self.driver.workers())

        wait_until(is_under_way, "a batch to begin", SECONDS_MAX)

    def wait_for_rows(self, rows: int) -> None:
        def is_done() -> bool:
            self.driver.start()
            return self.checkpoint.rows_done() >= rows

        wait_until(is_done, f"{rows} rows to be copied", SECONDS_MAX)

    def finish(self) -> Counter[str]:
        """Wait until all rows are copied. Return the values in the copy with their counts."""
        self.wait_for_rows(self.rows)
        self.driver.close()
        return committed(self.broker.bootstrap, "out")

    def expected(self) -> Counter[str]:
        return Counter(map(str, range(self.rows)))


def shuffled(weights: dict[str, int], count: int, chooser: random.Random) -> list[str]:
    """Return `count` kinds in proportion to their weights, in random order."""
    total = sum(weights.values())
    kinds = [kind for kind, weight in weights.items() for _ in range(weight)]
    chosen = [kinds[place * total // count] for place in range(count)]
    chooser.shuffle(chosen)
    return chosen
