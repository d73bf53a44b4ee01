"""Workers that are killed at random, during rebalances and a restart of the broker."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from harness.process.broker_process import BrokerProcess
from millstream.client import Admin, Consumer, Producer

WORKER = Path(__file__).with_name("killed_worker.py")
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
PARTITIONS = 4
KEYS = 200


def is_poison(number: int) -> bool:
    return number % 33 == 5


class Workers:
    """Worker processes that replace each other."""

    def __init__(self, broker: BrokerProcess, order: str, mode: str, folder: Path) -> None:
        self._arguments = [broker.bootstrap, "messages", "workers", order, mode]
        self._log = folder / "workers.log"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        with self._log.open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [sys.executable, str(WORKER), *self._arguments, name], stdout=output, stderr=output
            )

    def replace(self, name: str) -> None:
        """Kill a worker, and start another one with its name."""
        self._processes[name].kill()
        self._processes[name].wait()
        self.start(name)

    def stop(self) -> list[int]:
        """Stop all workers in order, and return their exit codes."""
        for process in self._processes.values():
            process.terminate()
        return [process.wait(60) for process in self._processes.values()]

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


class Audit:
    """Reads the committed output of the workers."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self._consumer = Consumer(bootstrap, topics=topics)
        self.done: Counter[int] = Counter()
        self.dead: Counter[int] = Counter()
        self.by_key: dict[bytes, list[int]] = defaultdict(list)

    def poll(self) -> int:
        """Read more output. Return how many messages have been processed so far."""
        for record in self._consumer.poll(timeout=0.1):
            number = int(record.value)
            if record.topic.endswith(".dlq"):
                self.dead[number] += 1
            else:
                self.done[number] += 1
                self.by_key[record.key].append(number)
        return len(self.done.keys() | self.dead.keys())

    def close(self) -> None:
        self._consumer.close()


def attack_workers(
    folder: Path, order: str, mode: str, *, count: int, kills: int, seconds_max: float
) -> Audit:
    """Process `count` messages while workers are killed and the broker restarts. Return the
    output."""
    chance = random.Random(count + kills)
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(folder, SETTINGS))
        with Admin(broker.bootstrap) as admin:
            for topic in ("messages", "messages-out", "messages.dlq"):
                admin.create_topic(topic, partitions=PARTITIONS)
        workers = stack.enter_context(Workers(broker, order, mode, folder))
        for name in ("a", "b", "c"):
            workers.start(name)
        with Producer(broker.bootstrap) as producer:
            for number in range(count):
                producer.send("messages", str(number), key=f"key-{number % KEYS}")
        audit = Audit(broker.bootstrap, ["messages-out", "messages.dlq"])
        stack.callback(audit.close)
        deadline = time.monotonic() + seconds_max
        # Each attack waits for its share of the messages: the last one happens before the end.
        attacks = ["kill"] * (kills - kills // 2) + ["restart"] + ["kill"] * (kills // 2)
        for number, attack in enumerate(attacks, 1):
            while audit.poll() < count * number / (len(attacks) + 2):
                assert time.monotonic() < deadline, workers.log_tail()
            if attack == "kill":
                workers.replace(chance.choice("abc"))
            else:
                broker.kill()
                broker.start()
        while audit.poll() < count:
            missing = count - audit.poll()
            assert time.monotonic() < deadline, f"{missing} are missing; {workers.log_tail()}"
        # A process that has hardly started dies by the signal itself.
        assert set(workers.stop()) <= {0, -signal.SIGTERM}, workers.log_tail()
        # Output that a worker sent twice at the very end.
        for _ in range(5):
            audit.poll()
    return audit


def check(audit: Audit, order: str, mode: str, count: int) -> None:
    poison = {number for number in range(count) if is_poison(number)}
    assert audit.dead.keys() == poison
    assert audit.done.keys() == set(range(count)) - poison
    if mode == "transactional":
        assert audit.dead.total() + audit.done.total() == count
    if order == "key":
        for numbers in audit.by_key.values():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == sorted(firsts)


@pytest.mark.parametrize(("order", "mode"), [("key", "plain"), ("none", "transactional")])
def test_few_kills(tmp_path: Path, order: str, mode: str) -> None:
    audit = attack_workers(tmp_path, order, mode, count=3000, kills=2, seconds_max=200)
    check(audit, order, mode, 3000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("order", "mode"), [("key", "plain"), ("key", "transactional"), ("none", "transactional")]
)
def test_many_kills(tmp_path: Path, order: str, mode: str) -> None:
    audit = attack_workers(tmp_path, order, mode, count=100_000, kills=20, seconds_max=1200)
    check(audit, order, mode, 100_000)
