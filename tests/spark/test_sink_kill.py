"""A query killed at random moments: its workers, its driver, the broker. Its output is exact.

`SINK_KILLS` says how often (100), `SINK_SEED` repeats a run's choices.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from harness.broker_process import BrokerProcess
from harness.raw_client import RawClient
from harness.seed import choose_seed
from spark.sink_query import ROWS_PER_BATCH
from spark.sink_world import committed

KILLS = int(os.environ.get("SINK_KILLS", "100"))
#: Batches take about as long as the pauses between kills.
ROWS_PER_KILL = 4 * ROWS_PER_BATCH
#: Of the whole run, a kill.
SECONDS_MAX = 60


class Driver:
    """The query's driver, which is started anew whenever it is dead."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "spark.sink_query", *arguments]
        self._log = (folder / "driver.log").open("ab")
        self._environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        self._process: subprocess.Popen[bytes] | None = None

    def is_finished(self) -> bool:
        """Start it if it is not running; whether it came to its end."""
        if self._process is not None and self._process.poll() is None:
            return False
        if self._process is not None and self._process.returncode == 0:
            return True
        self._process = subprocess.Popen(
            self._command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )
        return False

    def kill(self) -> None:
        """The driver, Spark's JVM, and everything they started."""
        if self._process is not None:
            for each in (*self.children(), psutil.Process(self._process.pid)):
                _kill(each)
            self._process.wait()

    def kill_worker(self, chooser: random.Random) -> None:
        """One of the Python processes that work for the JVM, if there are any now."""
        workers = [each for each in self.children() if "pyspark" in " ".join(_command(each))]
        if workers:
            _kill(chooser.choice(workers))

    def children(self) -> list[psutil.Process]:
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.timeout(KILLS * SECONDS_MAX + 300)
def test_output_is_exact_whenever_something_is_killed(tmp_path: Path) -> None:
    chooser = random.Random(choose_seed("SINK_SEED"))
    total = KILLS * ROWS_PER_KILL
    with BrokerProcess(tmp_path / "broker", {"auto.create.topics.enable": False}) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("in", 2)
            client.create_topic("out", 3)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(total):
            producer.produce("in", str(number), str(number))
            producer.poll(0)
        assert producer.flush(120) == 0
        driver = Driver(
            tmp_path, "millstream", broker.bootstrap, "in", "out", str(tmp_path / "checkpoint")
        )
        try:
            done = _attack(driver, broker, chooser)
        finally:
            driver.kill()
        output = committed(broker.bootstrap, "out")
        assert output == Counter(map(str, range(total))), f"after killing {dict(done)}"


def _attack(driver: Driver, broker: BrokerProcess, chooser: random.Random) -> Counter[str]:
    done: Counter[str] = Counter()
    deadline = time.monotonic() + KILLS * SECONDS_MAX
    while not driver.is_finished():
        assert time.monotonic() < deadline, "it does not get on"
        if done.total() >= KILLS:
            time.sleep(0.5)
            continue
        time.sleep(chooser.uniform(0.2, 4))
        what = chooser.choices(["worker", "driver", "broker"], [6, 2, 1])[0]
        if what == "worker":
            driver.kill_worker(chooser)
        elif what == "driver":
            # It needs some seconds before it does anything.
            time.sleep(chooser.uniform(2, 14))
            driver.kill()
        else:
            broker.kill()
            time.sleep(chooser.uniform(0, 1))
            broker.start()
        done[what] += 1
    return done
