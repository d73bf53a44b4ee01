"""A query of the sink without Spark, as processes that are killed at random moments.

    python -m spark.sink.crash_program FOLDER KILLS SEED

A driver works like Spark's: it runs each task of a batch in a process and retries failed tasks. It
runs the commit in a process, and an abort if the commit fails. Then it marks the batch as done. The
next driver repeats a batch that is not marked. The program kills tasks, commits and aborts, drivers
with their children, drivers alone, and the broker. It fails unless the output has every row once.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient
from spark.sink.direct_query import DirectQuery

TASKS = 2
ROWS = 40
ATTEMPTS = 4
_STOP = "stop"


def values(batch: int, part: int) -> Iterator[str]:
    return (f"{batch}-{part}-{number}" for number in range(ROWS))


class Child:
    """A process that runs one function. Its result is None if it failed."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.write(writer, pickle.dumps((action(),)))
                code = 0
            finally:
                os._exit(code)
        os.close(writer)

    def result(self) -> Any:
        with open(self._reader, "rb") as pipe:
            written = pipe.read()
        os.waitpid(self.pid, 0)
        return pickle.loads(written)[0] if written else None


class Query:
    """The query that all drivers share."""

    def __init__(self, folder: Path, servers: str) -> None:
        self._folder = folder
        self._query = DirectQuery(servers, "out", "crash")

    @property
    def batches(self) -> int:
        """The number of batches that are marked as done."""
        return len(list(self._folder.glob("commit-*")))

    def drive(self) -> bool:
        """Run batches until the stop file exists. Return False if one fails."""
        os.setpgid(0, 0)
        while not (self._folder / _STOP).exists():
            if not self.do_batch(self.batches):
                return False
        return True

    def do_batch(self, batch: int) -> bool:
        messages = self._write(batch)
        if messages is None:
            return False
        prepared = [each.prepared for each in messages if each.prepared is not None]
        if not Child(lambda: self._query.commit(batch, *prepared) or True).result():
            Child(lambda: self._query.abort(batch, *prepared) or True).result()
            return False
        (self._folder / f"commit-{batch}").touch()
        return True

    def _write(self, batch: int) -> list[Any] | None:
        messages: dict[int, Any] = {}
        for _ in range(ATTEMPTS):
            running = {
                part: Child(lambda part=part: self._query.task(values(batch, part), part, batch))
                for part in range(TASKS)
                if part not in messages
            }
            found = {part: child.result() for part, child in running.items()}
            messages |= {part: each for part, each in found.items() if each is not None}
            if len(messages) == TASKS:
                return [messages[part] for part in range(TASKS)]
        return None

    def check(self) -> None:
        expected = Counter(
            value
            for batch in range(self.batches)
            for part in range(TASKS)
            for value in values(batch, part)
        )
        output = self._query.output()
        assert output == expected, {"missing": expected - output, "too many": output - expected}
        assert self._query.open_ids() == []


def attack(driver: int, broker: BrokerProcess, chooser: random.Random) -> str:
    """Kill a random target after a random pause. Return its kind."""
    time.sleep(chooser.uniform(0, 0.3))
    what = chooser.choices(["process", "driver", "driver alone", "broker"], [6, 2, 1, 1])[0]
    if what == "broker":
        broker.kill()
        broker.start()
        return what
    # The target may have ended already.
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        if what == "process":
            children = psutil.Process(driver).children()
            for child in children[: chooser.randint(1, 2)]:
                child.kill()
        elif what == "driver":
            os.killpg(driver, signal.SIGKILL)
        else:
            os.kill(driver, signal.SIGKILL)
    return what


def is_group_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def supervise(folder: Path, kills: int, seed: int) -> Counter[str]:
    """Run drivers and kill them. Return the number of kills of each kind."""
    chooser = random.Random(seed)
    done: Counter[str] = Counter()
    groups: list[int] = []
    with BrokerProcess(folder, {"auto.create.topics.enable": False}) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("out", 3)
        query = Query(folder, broker.bootstrap)
        while done.total() < kills:
            driver = Child(query.drive)
            groups.append(driver.pid)
            wait_until(lambda driver=driver: os.getpgid(driver.pid) == driver.pid, "a driver")
            while done.total() < kills and os.waitpid(driver.pid, os.WNOHANG)[0] == 0:
                done[attack(driver.pid, broker, chooser)] += 1
        (folder / _STOP).touch()
        for group in groups:
            wait_until(lambda group=group: _reap() and is_group_gone(group), "processes to end")
        # A killed driver may have left open transactions; the last batch aborts them.
        while not query.do_batch(query.batches):
            pass
        query.check()
    return done


def _reap() -> bool:
    """Reap ended child processes."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return True


if __name__ == "__main__":
    killed = supervise(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(f"{dict(killed)}\n")
