"""The processes of the random workload: starting, killing, pausing and replacing them."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.process.brokers import Brokers
from transactions_clients.actor import TRANSACTION_TIMEOUT_MS, all_partitions, partition_name
from transactions_clients.program import Program

TESTS = Path(__file__).resolve().parent.parent
ROLES = ("writer", "writer", "java writer", "mover", "mover", "reader", "watcher")
#: The error as librdkafka and as Java print it.
_OUT_OF_ORDER = re.compile("OUT_OF_ORDER_SEQUENCE_NUMBER|OutOfOrderSequence")
_OVERTIME_SECONDS = TRANSACTION_TIMEOUT_MS / 1000 + 0.5


@dataclass(slots=True)
class Part:
    """One running actor. A replacement may use the same `transactional_id`."""

    role: str
    transactional_id: str
    process: subprocess.Popen[bytes]
    errors: Path


class Cast:
    """All actors of one run. Each writes its history to `<name>.jsonl` in `folder`."""

    def __init__(
        self,
        brokers: Brokers,
        java_writer: Program | None,
        folder: Path,
        chance: random.Random,
    ) -> None:
        self._brokers = brokers
        self._java_writer = java_writer
        self._folder = folder
        self._chance = chance
        self._started = 0
        self._parts: list[Part] = []

    def start_all(self) -> None:
        for role in ROLES:
            self._start(role)

    def _start(self, role: str, transactional_id: str | None = None) -> None:
        self._started += 1
        name = f"{role.replace(' ', '-')}{self._started}"
        transactional_id = transactional_id or f"id-{name}"
        errors = self._folder / f"{name}.errors"
        with errors.open("wb") as output:
            process = subprocess.Popen(
                self._command(role, name, transactional_id),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=TESTS,
            )
        self._parts.append(Part(role, transactional_id, process, errors))

    def _command(self, role: str, name: str, transactional_id: str) -> list[str]:
        given = {
            "bootstrap": self._brokers.bootstrap,
            "name": name,
            "history": str(self._folder / f"{name}.jsonl"),
            "seed": str(self._chance.randrange(1 << 30)),
            "transactional-id": transactional_id,
        }
        if role == "java writer" and self._java_writer is not None:
            places = [partition_name(each.topic, each.partition) for each in all_partitions()]
            timeout_ms = str(TRANSACTION_TIMEOUT_MS)
            return [*self._java_writer.command, *given.values(), timeout_ms, *places]
        flags = [f"--{option}={value}" for option, value in given.items()]
        role = role.removeprefix("java ")
        return [sys.executable, "-m", "transactions_clients.actor", role, *flags]

    def is_under_way(self) -> bool:
        """Whether every actor has done something, and some actor has aborted a transaction."""
        self.check()
        written = [path.read_bytes() for path in self.histories()]
        everybody = len(written) == len(ROLES) and all(b'"type":"ok"' in each for each in written)
        return everybody and any(b'"type":"fail"' in each for each in written)

    def check_order(self) -> None:
        """Check that no producer got an out-of-order error. After faults such errors are allowed: a
        client that gave up on one batch sends the next."""
        for path in sorted(self._folder.glob("*.errors")):
            text = path.read_text(errors="replace")
            assert not _OUT_OF_ORDER.search(text), f"{path.stem}: {text[-3000:]}"

    def strike(self) -> str:
        """Inject a random fault into a random broker or actor; return its name."""
        event = self._chance.choices(
            ["broker", "kill", "replace", "hold up"], weights=[3, 3, 4, 1]
        )[0]
        match event:
            case "broker":
                node_id = self._chance.choice(self._brokers.node_ids)
                self._brokers.kill(node_id)
                self._brokers.start(node_id)
            case "kill":
                # The coordinator aborts its open transaction after the timeout.
                self._start(self._end_one().role)
            case "replace":
                part = self._end_one()
                self._start(part.role, part.transactional_id)
            case "hold up":
                self._hold_up(self._chance.choice(self._parts))
        self.check()
        return event

    def _end_one(self) -> Part:
        part = self._parts.pop(self._chance.randrange(len(self._parts)))
        self._kill(part)
        return part

    def _hold_up(self, part: Part) -> None:
        """Pause an actor for longer than the transaction timeout."""
        os.kill(part.process.pid, signal.SIGSTOP)
        time.sleep(_OVERTIME_SECONDS)
        os.kill(part.process.pid, signal.SIGCONT)

    def check(self) -> None:
        """Check that no actor has exited by itself."""
        for part in self._parts:
            if part.process.poll() is not None:
                text = part.errors.read_text(errors="replace")[-3000:]
                raise AssertionError(f"a {part.role} exited: {text}")

    def kill_all(self) -> None:
        while self._parts:
            self._kill(self._parts.pop())

    @staticmethod
    def _kill(part: Part) -> None:
        part.process.kill()
        part.process.wait()

    def histories(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))


@contextmanager
def cast_of(
    brokers: Brokers, java_writer: Program | None, folder: Path, chance: random.Random
) -> Iterator[Cast]:
    cast = Cast(brokers, java_writer, folder, chance)
    try:
        cast.start_all()
        yield cast
    finally:
        cast.kill_all()
