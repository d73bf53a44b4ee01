"""Fixtures for `millstream worker`: a module with a worker, and the command as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.process.broker_process import HOST, free_port, wait_until

SECONDS_MAX = 60.0

#: Each handler call leaves a line in `seen`, then waits for the file `gate` if the value is "wait".
JOBS = """
import os, pathlib, time
from millstream import Job, Worker

worker = Worker(
    topics=[os.environ["TOPIC"]],
    group_id=os.environ["GROUP"],
    concurrency=2,
    consumer={"session_timeout": 6.0},
)
folder = pathlib.Path(__file__).parent
text = "first"

@worker.handler
def handle(job: Job) -> None:
    with (folder / "seen").open("a") as file:
        file.write(f"{os.getpid()} {text} {job.value.decode()}\\n")
    while job.value == b"wait" and not (folder / "gate").exists():
        time.sleep(0.01)
    if job.value == b"fail":
        job.reject("as asked")
"""


class Running:
    """A running `millstream worker run`."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, address: str) -> None:
        self.process = process
        self.folder = folder
        self.address = address

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page; status 0 while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self) -> None:
        wait_until(lambda: self.get("/readyz")[0] == 200 or self.has_ended(), "ready", SECONDS_MAX)
        assert not self.has_ended(), self.log()

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        samples = [each for family in families for each in family.samples if each.name == name]
        return sum(each.value for each in samples)

    def seen(self) -> list[tuple[int, str, str]]:
        """Return process, text of the module and value of each handler call."""
        path = self.folder / "seen"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), text, value) for pid, text, value in map(str.split, lines)]

    def children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(SECONDS_MAX)


Start = Callable[..., Running]


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """The module `jobs`."""
    path = tmp_path / "jobs.py"
    path.write_text(textwrap.dedent(JOBS))
    return path


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


@pytest.fixture
def start(broker: str, topic: str, group: str, jobs: Path) -> Iterator[Start]:
    """Start `millstream worker run jobs:worker` with further arguments."""
    started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def run(*arguments: str, target: str = "jobs:worker") -> Running:
        address = f"{HOST}:{free_port()}"
        environment = {
            **os.environ,
            "TOPIC": topic,
            "GROUP": group,
            "MILLSTREAM_BOOTSTRAP_SERVERS": broker,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "millstream.cli.main", "worker", "run", target]
        # A test runner in the background may ignore the signal.
        prefix = ["env", "--default-signal=INT"]
        log = (jobs.parent / "log").open("ab")
        process = subprocess.Popen(
            [*prefix, *command, "--metrics", address, *arguments],
            cwd=jobs.parent,
            env=environment,
            stdout=log,
            stderr=log,
        )
        started.append((process, log))
        return Running(process, jobs.parent, address)

    yield run
    for process, log in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()
        process.wait()
        log.close()
