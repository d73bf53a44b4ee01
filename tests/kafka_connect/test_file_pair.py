"""Kafka Connect copies a file through a topic to another file, on three brokers.

The worker runs in distributed mode with exactly-once sources: the source writes its lines and its
position in one transaction. The file sink has no transactions: after `kill -9`, and only then, it
may write lines again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.process.broker_process import wait_until
from harness.process.brokers import QUICK_GROUPS, Brokers, started
from harness.process.java_process import JARS
from harness.seed import choose_seed
from harness.tool.java import require_java
from harness.topic_content import read_messages, wait_for_messages
from kafka_connect.worker import Worker

TOPIC = "lines"
SECONDS_MAX = 120.0
SETTINGS = {**QUICK_GROUPS, "group.min.session.timeout.ms": 500}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    require_java(*JARS)
    with started(tmp_path, 3, SETTINGS) as brokers:
        brokers.create_topic(TOPIC)
        yield brokers
        brokers.stop()
        brokers.check_logs()


class Files:
    """The input file of the source and the output file of the sink."""

    def __init__(self, folder: Path) -> None:
        self._input = folder / "input"
        self._input.touch()
        self._output = folder / "output"
        self._output.touch()
        self.lines: list[str] = []

    def begin(self, worker: Worker) -> None:
        """Create both connectors."""
        package = "org.apache.kafka.connect.file"
        shared = {"tasks.max": "1"}
        source = {"connector.class": f"{package}.FileStreamSourceConnector", "topic": TOPIC}
        sink = {"connector.class": f"{package}.FileStreamSinkConnector", "topics": TOPIC}
        worker.put_connector("source", {**shared, **source, "file": str(self._input)})
        worker.put_connector("sink", {**shared, **sink, "file": str(self._output)})

    def append(self, count: int) -> None:
        fresh = [f"line {len(self.lines) + number}" for number in range(count)]
        self.lines += fresh
        with self._input.open("a") as file:
            file.write("".join(f"{line}\n" for line in fresh))

    def copied(self) -> list[str]:
        return self._output.read_text().splitlines()

    def until_copied(self, bootstrap: str) -> None:
        """Wait until the topic and the sink's file have the last line."""
        wait_for_messages(bootstrap, [TOPIC], len(self.lines), SECONDS_MAX)
        wait_until(lambda: self.lines[-1] in self.copied()[-1:], "the last line", SECONDS_MAX)


def topic_lines(brokers: Brokers) -> list[str]:
    """Return the committed lines in the topic."""
    return [
        (message.value or b"").decode() for message in read_messages(brokers.bootstrap, [TOPIC])
    ]


def test_a_worker_is_stopped_and_then_killed(brokers: Brokers, tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.append(500)
    with Worker("worker", tmp_path, brokers.bootstrap, len(brokers)) as worker:
        files.begin(worker)
        files.until_copied(brokers.bootstrap)
        files.append(500)
        worker.stop()
        worker.start()
        files.until_copied(brokers.bootstrap)
        assert files.copied() == files.lines
        files.append(500)
        worker.kill()
        files.append(500)
        worker.start()
        files.until_copied(brokers.bootstrap)
    assert topic_lines(brokers) == files.lines
    # In the order in which they came first.
    assert list(dict.fromkeys(files.copied())) == files.lines


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_workers_take_over_from_one_another(brokers: Brokers, tmp_path: Path) -> None:
    chance = random.Random(choose_seed("CONNECT_SEED"))
    files = Files(tmp_path)
    files.append(500)
    with ExitStack() as running:
        workers = [
            running.enter_context(Worker(name, tmp_path, brokers.bootstrap, len(brokers)))
            for name in ("first", "second")
        ]
        files.begin(workers[0])
        for _ in range(8):
            files.append(chance.randrange(100, 2000))
            victim = chance.choice(workers)
            victim.kill()
            files.append(chance.randrange(100, 2000))
            if chance.random() < 0.5:
                files.until_copied(brokers.bootstrap)
            victim.start()
        files.until_copied(brokers.bootstrap)
        wait_until(
            lambda: all(set(workers[0].states(name)) == {"RUNNING"} for name in ("source", "sink")),
            "both connectors to run",
            SECONDS_MAX,
        )
    assert topic_lines(brokers) == files.lines
    assert set(files.copied()) == set(files.lines)
