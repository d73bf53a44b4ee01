"""How a worker ends, by signals and by `stop()`, and starts again."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.process.broker_process import wait_until
from millstream.client import Admin, Producer, UsageError, Worker
from millstream.client.record import Partition

GATED = Path(__file__).with_name("gated.py")
SECONDS_MAX = 60.0
Name = Callable[[str], str]


def fill(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, str(number), key="key")


def committed(bootstrap: str, group: str, topic: str) -> int:
    with Admin(bootstrap) as admin:
        return admin.list_group_offsets(group).get(Partition(topic, 0), 0)


@contextmanager
def gated(bootstrap: str, topic: str, group: str, runs: int) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, str(GATED), bootstrap, topic, group, str(runs)]
    # A test runner in the background may ignore the signal.
    command = ["env", "--default-signal=INT", *program]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().removesuffix("\n")


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_ends_a_worker_after_its_running_jobs(
    bootstrap: str, topic: str, name: Name, number: signal.Signals
) -> None:
    """Finished messages are committed at the end of each run, though no commit was due."""
    fill(bootstrap, topic, 2000)
    group = name("group")
    done = 0
    with gated(bootstrap, topic, group, runs=2) as process:
        for _ in range(2):
            assert said(process) == f"began {done}"
            let_go(process)
            assert said(process) == f"began {done + 1}"
            process.send_signal(number)
            let_go(process)
            done += 2
            # The worker may have started others before it received the signal.
            while (line := said(process)).startswith("began"):
                assert line == f"began {done}"
                let_go(process)
                done += 1
            if number == signal.SIGINT:
                assert line == "interrupted"
                line = said(process)
            assert line == "ended"
            assert committed(bootstrap, group, topic) == done
        assert process.wait(SECONDS_MAX) == 0


def test_a_worker_can_be_started_again(bootstrap: str, topic: str, name: Name) -> None:
    seen: list[int] = []
    group = name("group")
    worker = Worker(
        bootstrap, topics=[topic], group_id=group, handler=lambda job: seen.append(job.offset)
    )
    for count in (1, 2, 3):
        fill(bootstrap, topic, 1)
        with worker:
            wait_until(lambda count=count: len(seen) == count, "the message", SECONDS_MAX)
            with pytest.raises(UsageError, match="is running"):
                worker.run()
            worker.stop()
        assert committed(bootstrap, group, topic) == count
    fill(bootstrap, topic, 1)
    runner = threading.Thread(target=worker.run)
    runner.start()
    wait_until(lambda: len(seen) == 4, "the message", SECONDS_MAX)
    worker.stop()
    runner.join(SECONDS_MAX)
    assert not runner.is_alive()
    assert committed(bootstrap, group, topic) == 4


def test_a_worker_that_is_stopped_before_it_starts(bootstrap: str, topic: str, name: Name) -> None:
    worker = Worker(bootstrap, topics=[topic], group_id=name("group"), handler=print)
    worker.stop()
    worker.run()
