"""One run: a cluster, its clients, an attack, and the verdict.

The clients work all the time. `attack` (the nemesis) or `roll` (restarts, one broker after the
other) is what happens to the cluster. After the last fault the cluster has to become whole without
help; then the clients finish, everything is read back, and the evidence is judged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.history import Outcome
from nemesis import fault
from nemesis.client import Client, Member, Observer, Writer, read_all
from nemesis.cluster import Cluster, await_true
from nemesis.evidence import Evidence, now_ns, skipped
from nemesis.network import Network

TOPIC = "plain"
PARTITIONS = 6
STOP_S_MAX = 60.0
CATCH_UP_S_MAX = 120.0
_PROTOCOLS = ("classic", "consumer")


@dataclass(slots=True)
class Report:
    seed: int
    violations: list[str] = field(default_factory=list)
    #: What applications saw as errors.
    errors: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    #: Longest time that a producer was without an acknowledgement.
    gap_s_max: float = 0.0
    #: From the last fault's end until the cluster was whole.
    whole_s: float = 0.0
    recoveries_s: list[float] = field(default_factory=list)


class Run:
    """`folder` is for data and logs; `say` for who watches."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._random = random.Random(seed)
        self._evidence = Evidence()
        self._begin = time.monotonic()
        self.report = Report(seed)
        self._cluster = Cluster(folder, Network())
        self._cluster.start({TOPIC: PARTITIONS})
        address = self._cluster.bootstrap
        evidence = self._evidence
        self._writers = [
            Writer(f"writer-{n}", evidence, address, TOPIC, PARTITIONS, 0.01) for n in range(2)
        ]
        self._members = [
            Member(f"{protocol}-{n}", evidence, address, f"group-{protocol}", protocol, TOPIC)
            for protocol in _PROTOCOLS
            for n in range(2)
        ]
        self._observers = [
            Observer(
                f"observer-{protocol}", evidence, address, f"group-{protocol}", TOPIC, PARTITIONS
            )
            for protocol in _PROTOCOLS
        ]

    def _tell(self, what: str) -> None:
        line = f"{time.monotonic() - self._begin:6.1f} s  {what}"
        self.report.faults.append(line)
        self._say(line)

    def attack(self, minutes: float, whole_s_max: float) -> Report:
        self._start_clients()
        end = time.monotonic() + minutes * 60
        cards: list[fault.Kind] = []
        while time.monotonic() < end:
            if not cards:
                cards = fault.deck()
                self._random.shuffle(cards)
            self._strike([cards.pop() for _ in range(self._random.choice((1, 1, 2))) if cards])
            if self._random.random() < 0.3:
                self._recover(whole_s_max)
            else:
                time.sleep(self._random.uniform(0.5, 3))
        self.report.whole_s = self._recover(whole_s_max)
        return self._finish()

    def _strike(self, kinds: list[fault.Kind]) -> None:
        """Injects one fault after the other, holds them, undoes them in any order."""
        faults: list[fault.Fault] = []
        for kind in kinds:
            if faults and kind.name.startswith(("kill", "pause", "fill", "isolate-pair")):
                # Of two faults at a time the second leaves processes alone: they could be gone.
                continue
            faults.append(kind.strike(self._cluster, self._random))
            self._tell(f"{kind.name}: {faults[-1].what}")
        time.sleep(self._random.uniform(2, 9))
        self._random.shuffle(faults)
        for each in faults:
            each.undo()
        self._tell("undone")

    def _recover(self, whole_s_max: float) -> float:
        try:
            took_s = self._cluster.await_whole(whole_s_max)
        except AssertionError as error:
            self.report.violations.append(str(error))
            self._tell(str(error))
            took_s = whole_s_max
        else:
            self._tell(f"whole after {took_s:.1f} s")
        self.report.recoveries_s.append(round(took_s, 1))
        return took_s

    def roll(self, rounds: int, whole_s_max: float) -> Report:
        """Stop and start each broker in turn."""
        self._start_clients()
        self._await_progress()
        for _ in range(rounds):
            for broker in self._cluster.brokers:
                self._tell(f"SIGTERM to {broker.name}")
                code = broker.stop(STOP_S_MAX)
                if code != 0:
                    self.report.violations.append(f"{broker.name} ended with code {code}")
                self._await_progress()
                broker.start()
                self._tell(f"{broker.name} started")
                self._recover(whole_s_max)
                self._await_progress()
        return self._finish()

    def _await_progress(self) -> None:
        """Until every producer and every group has got further."""
        counts = [len(writer.acknowledged) for writer in self._writers]
        wanted = {member.group for member in self._members}
        begin_ns = now_ns()

        def have_moved() -> bool:
            moved = all(
                len(writer.acknowledged) > count
                for writer, count in zip(self._writers, counts, strict=True)
            )
            recent = {
                event.group
                for event in self._evidence.commits[-500:]
                if event.begin_ns > begin_ns and event.who.endswith("commit")
            }
            return moved and wanted <= recent

        await_true(have_moved, "producers and groups to get on", CATCH_UP_S_MAX)

    # Clients

    @property
    def _clients(self) -> list[Client]:
        return [*self._writers, *self._members, *self._observers]

    def _start_clients(self) -> None:
        for client in self._clients:
            client.start()

    def _finish(self) -> Report:
        report = self.report
        for writer in self._writers:
            writer.stop()
        for writer in self._writers:
            writer.join()
        self._tell("producers have finished")
        begin_ns = now_ns()
        found = read_all(self._cluster.bootstrap, TOPIC, PARTITIONS, CATCH_UP_S_MAX)
        self._evidence.add("auditor", Outcome.OK, begin_ns, [found])
        self._await_groups(found.ends)
        for client in (*self._members, *self._observers):
            client.stop()
        for client in (*self._members, *self._observers):
            client.join()
        written = [send for writer in self._writers for send in writer.acknowledged]
        report.violations += self._evidence.judge()
        for group in sorted({member.group for member in self._members}):
            names = [member.name for member in self._members if member.group == group]
            report.violations += skipped(self._evidence.operations, names, written)
        report.errors = self._evidence.errors
        report.acknowledged = len(written)
        report.gap_s_max = round(max(writer.gap_s_max for writer in self._writers), 2)
        return report

    def _await_groups(self, ends: dict[str, int]) -> None:
        """Until all that was written is committed by each group."""
        for observer in self._observers:
            deadline = time.monotonic() + CATCH_UP_S_MAX

            def committed(observer: Observer = observer) -> dict[str, int]:
                events = [event for event in self._evidence.commits if event.who == observer.name]
                return {event.partition: event.offset for event in events[-2 * PARTITIONS :]}

            while committed() != ends:
                if time.monotonic() > deadline:
                    self.report.violations.append(
                        f"{observer.group} has committed {committed()} of {ends}"
                    )
                    break
                time.sleep(0.2)
