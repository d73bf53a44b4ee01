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
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
TOTAL = KILLS * ROWS_PER_KILL
#: Of the whole run, a kill.
SECONDS_MAX = 60


class Driver:
    """The query's driver, which is started anew whenever it is dead."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "spark.sink_query", *arguments]
        self._log = (folder / "driver.log").open("ab")
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
            env=ENVIRONMENT,
            start_new_session=True,
        )
        return False

    def kill(self) -> None:
        """The driver, Spark's JVM, and everything they started."""
        if self._process is not None:
            for each in self._children():
                _kill(each)
            self._process.kill()
            self._process.wait()

    def kill_worker(self, chooser: random.Random) -> None:
        """One of the Python processes that work for the JVM, if there are any now."""
        workers = self.workers()
        if workers:
            _kill(chooser.choice(workers))

    def workers(self) -> list[psutil.Process]:
        """There are some once a query runs."""
        return [each for each in self._children() if "pyspark.daemon" in _command(each)]

    def _children(self) -> list[psutil.Process]:
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


@pytest.mark.parametrize(
    "kills", [15, pytest.param(KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_tasks_and_drivers_can_be_killed_at_any_moment(tmp_path: Path, kills: int) -> None:
    seed = choose_seed("SINK_SEED")
    command = [sys.executable, "-m", "spark.sink_crash", str(tmp_path), str(kills), str(seed)]
    subprocess.run(command, check=True, env=ENVIRONMENT)


@pytest.mark.soak
@pytest.mark.timeout(KILLS * SECONDS_MAX + 300)
def test_output_is_exact_whenever_something_is_killed(tmp_path: Path) -> None:
    output, done = _copy(tmp_path, "millstream")
    assert output == Counter(map(str, range(TOTAL))), f"after killing {dict(done)}"


@pytest.mark.soak
@pytest.mark.usefixtures("jvm_connector")
@pytest.mark.timeout(KILLS * SECONDS_MAX + 300)
def test_the_same_with_sparks_own_sink_has_duplicates(tmp_path: Path) -> None:
    output, done = _copy(tmp_path, "kafka")
    assert output.keys() == {str(number) for number in range(TOTAL)}
    assert output.total() > TOTAL, f"no duplicates after killing {dict(done)}"


def _copy(folder: Path, sink: str) -> tuple[Counter[str], Counter[str]]:
    """What is in the copy of a topic, and what was killed while it was made."""
    chooser = random.Random(choose_seed("SINK_SEED"))
    with BrokerProcess(folder, {"auto.create.topics.enable": False}) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("in", 2)
            client.create_topic("out", 3)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(TOTAL):
            producer.produce("in", str(number), str(number))
            producer.poll(0)
        assert producer.flush(120) == 0
        checkpoint = str(folder / "checkpoint")
        driver = Driver(folder, sink, broker.bootstrap, "in", "out", checkpoint)
        try:
            done = _attack(driver, broker, chooser)
        finally:
            driver.kill()
        return committed(broker.bootstrap, "out"), done


def _attack(driver: Driver, broker: BrokerProcess, chooser: random.Random) -> Counter[str]:
    done: Counter[str] = Counter()
    deadline = time.monotonic() + KILLS * SECONDS_MAX
    while not driver.is_finished():
        assert time.monotonic() < deadline, "it does not get on"
        if done.total() >= KILLS or not driver.workers():
            time.sleep(0.2)
            continue
        time.sleep(chooser.uniform(0, 4))
        what = chooser.choices(["worker", "driver", "broker"], [6, 2, 1])[0]
        if what == "worker":
            driver.kill_worker(chooser)
        elif what == "driver":
            driver.kill()
        else:
            broker.kill()
            time.sleep(chooser.uniform(0, 1))
            broker.start()
        done[what] += 1
    return done
