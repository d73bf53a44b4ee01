"""A group member that runs as its own process, and the clients that it can use.

The programs are in `members/`. Each appends its lines to a file, which survives a kill of the
process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from group_clients.history import History
from harness.process.broker_process import wait_until

FOLDER = Path(__file__).resolve().parent
CACHE = FOLDER.parent.parent / ".cache"
JARS = CACHE / "jars"
END_SECONDS_MAX = 30.0

_JVM = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


@dataclass(frozen=True, slots=True)
class Client:
    """The command of a member. `needs` are names in .cache/tools.json."""

    name: str
    program: str
    protocol: str
    assignor: str | None = None
    needs: Sequence[str] = ()

    def command(self, built: Path) -> list[str]:
        """Return the command of a member; `built` is the directory of the compiled Java program."""
        path = str(FOLDER / "members" / self.program)
        if self.program.endswith(".py"):
            return [sys.executable, path]
        if self.program.endswith(".js"):
            return ["node", path]
        return ["java", *_JVM, "-cp", f"{built}:{JARS}/*", "Member"]


@dataclass(frozen=True, slots=True)
class Orders:
    """The options of a member. It commits "after" or "before" processing, at the latest after
    `records_max` records."""

    bootstrap: str
    group: str
    topic: str
    session_ms: int
    heartbeat_ms: int
    instance_id: str | None = None
    records_max: int = 20
    commit: str = "after"

    def for_client(self, client: Client, hold: Path) -> str:
        """Return the options as the programs expect them."""
        given = {
            **asdict(self),
            "protocol": client.protocol,
            "assignor": client.assignor,
            "hold": str(hold),
        }
        return json.dumps(given)


_COOPERATIVE: Final = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
_JAVA: Final = ("java", "jars")
CLIENTS: Final = {
    client.name: client
    for client in (
        Client("confluent-classic", "confluent.py", "classic"),
        Client("confluent-eager", "confluent.py", "classic", "range"),
        Client("confluent-consumer", "confluent.py", "consumer"),
        Client("aiokafka", "aio.py", "classic"),
        Client("kafka-python", "kafka_python.py", "classic"),
        Client("kafkajs", "member.js", "classic", needs=("node", "kafkajs")),
        Client("java-classic", "Member.java", "classic", _COOPERATIVE, _JAVA),
        Client("java-consumer", "Member.java", "consumer", needs=_JAVA),
    )
}


def build_java(target: Path) -> None:
    """Compile the Java member once, because that takes longer than starting it."""
    source = str(FOLDER / "members" / "Member.java")
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(target), source], check=True)


@dataclass(frozen=True, slots=True)
class Start:
    """The command of members, and the directory for their files."""

    client: Client
    command: Sequence[str]
    folder: Path


class Member:
    """A member that runs until it is killed or shut down."""

    def __init__(self, start: Start, name: str, orders: Orders) -> None:
        folder = start.folder
        self.name = name
        self.history = History(name)
        self._hold = folder / f"{name}.hold"
        self._errors = folder / f"{name}.errors"
        lines = folder / f"{name}.lines"
        environment = {**os.environ, "NODE_PATH": str(CACHE / "node" / "node_modules")}
        given = orders.for_client(start.client, self._hold)
        with lines.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*start.command, given],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
            )
        self._lines = lines.open()
        self._partial = ""
        self._has_ended = False

    @property
    def owned(self) -> frozenset[int]:
        self.read()
        return self.history.owned

    def read(self) -> None:
        """Read the new lines; fail if the member has exited by itself."""
        whole, newline, rest = (self._partial + self._lines.read()).rpartition("\n")
        self._partial = rest
        if newline:
            self.history.read(whole.split("\n"))
        if not self._has_ended and self._process.poll() is not None:
            raise AssertionError(
                f"{self.name} exited with {self._process.returncode}: {self._said}"
            )

    @property
    def _said(self) -> str:
        return self._errors.read_text(errors="replace")[-3000:]

    # Faults

    def kill(self) -> None:
        """Kill the member with SIGKILL."""
        self._has_ended = True
        self._process.kill()
        self._process.wait()
        self.read()
        self.history.killed(time.monotonic_ns())
        self._lines.close()

    def ask_to_end(self) -> None:
        self._has_ended = True
        self._process.send_signal(signal.SIGTERM)

    def wait_for_end(self) -> None:
        code = self._process.wait(END_SECONDS_MAX)
        self.read()
        # A JVM that gets SIGTERM has the signal in its exit code.
        assert code in (0, 128 + signal.SIGTERM), f"{self.name} exited with {code}: {self._said}"
        self._lines.close()

    def end(self) -> None:
        """Shut the member down with SIGTERM: it commits and leaves."""
        self.ask_to_end()
        self.wait_for_end()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self.history.paused(time.monotonic_ns())

    def wake(self) -> None:
        self.history.woken(time.monotonic_ns())
        self._process.send_signal(signal.SIGCONT)

    def ask_to_hold(self) -> None:
        """Make the member wait at its next step between processing and committing."""
        self._hold.touch()

    def wait_for_hold(self) -> None:
        count = self.history.release_count

        def is_holding() -> bool:
            self.read()
            return self.history.holding_count > count

        wait_until(is_holding, f"{self.name} to hold", 90)

    def release(self) -> None:
        self.history.release_count = self.history.holding_count
        self._hold.unlink()

    def dispose(self) -> None:
        """Kill the member in any state, without reading its lines."""
        if not self._lines.closed:
            self._process.kill()
            self._process.wait()
            self._lines.close()
