"""Messages that kill their worker's process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.client import Admin, Consumer, Producer

WORKER = Path(__file__).with_name("deadly_worker.py")
SECONDS_MAX = 120.0
MESSAGES = [str(number) for number in range(40)]
DEADLY = ["kill", "segfault"]


@pytest.mark.parametrize(("order", "mode"), [("key", "plain"), ("none", "transactional")])
def test_a_message_that_kills_its_process_becomes_a_dead_letter(
    bootstrap: str, wide_topic: str, name: Callable[[str], str], order: str, mode: str
) -> None:
    """All other messages are processed, though deadly ones were in progress beside them."""
    values = [*MESSAGES[:10], DEADLY[0], *MESSAGES[10:20], DEADLY[1], *MESSAGES[20:]]
    with Admin(bootstrap) as admin:
        for topic in (f"{wide_topic}-out", f"{wide_topic}.dlq"):
            admin.create_topic(topic, partitions=1)
    with Producer(bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(wide_topic, value, key=f"key-{number}")
    command = [sys.executable, str(WORKER), bootstrap, wide_topic, name("group"), order, mode]
    done: Counter[str] = Counter()
    dead: Counter[str] = Counter()
    deaths: list[int] = []
    process = subprocess.Popen(command)
    deadline = time.monotonic() + SECONDS_MAX
    with Consumer(bootstrap, topics=[f"{wide_topic}-out", f"{wide_topic}.dlq"]) as consumer:
        try:
            while done.keys() | dead.keys() != set(values):
                assert time.monotonic() < deadline, (done, dead, deaths)
                if process.poll() is not None:
                    deaths.append(process.returncode)
                    process = subprocess.Popen(command)
                for record in consumer.poll(timeout=0.1):
                    counter = dead if record.topic.endswith(".dlq") else done
                    counter[record.value.decode()] += 1
                    if counter is dead:
                        assert record.header("millstream.error.type") == (
                            b"millstream.client.worker.failure.ProcessDied"
                        )
        finally:
            process.terminate()
            assert process.wait(60) in (0, -signal.SIGTERM)
    assert done.keys() == set(MESSAGES)
    assert dead.keys() == set(DEADLY)
    if mode == "transactional":
        assert done.total() + dead.total() == len(values)
    # One death by an unknown message, one by the few in progress, then by the message alone: each
    # kind may happen once per deadly message.
    assert set(deaths) == {-signal.SIGKILL, -signal.SIGSEGV}
    assert len(deaths) <= 2 * (3 + 1)
