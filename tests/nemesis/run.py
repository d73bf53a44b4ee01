"""One run: a cluster, its clients, an attack, and the verdict.

The clients work all the time, while `attack` (the nemesis) or `roll` (a rolling restart) runs.
After the last fault the cluster must become healthy by itself. Then the clients finish, everything
is read back, and the evidence is judged.
"""

from __future__ import annotations

import faulthandler
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.history import Outcome, Poll
from nemesis import fault
from nemesis.client import Client, Member, Observer, Writer, read_all
from nemesis.cluster import Cluster, await_true
from nemesis.evidence import Evidence, not_once, now_ns, skipped
from nemesis.network import Network
from nemesis.processor import Processor

#: Topics: read by groups; input of the processors; output of the processors.
PLAIN, INPUT, OUTPUT = "plain", "input", "output"
PARTITIONS = {PLAIN: 6, INPUT: 3, OUTPUT: 3}
STOP_S_MAX = 60.0
CATCH_UP_S_MAX = 90.0
FINISH_S_MAX = 150.0
_LOOK_S = 0.2
_PROTOCOLS = ("classic", "consumer")
_PROCESSORS = "group-processors"
_PAUSE_S = 0.012


@dataclass(slots=True)
class Report:
    seed: int
    violations: list[str] = field(default_factory=list)
    #: Errors that applications saw.
    errors: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    #: Output records of transactions.
    processed: int = 0
    #: Longest time without an acknowledgement of a producer.
    gap_s_max: float = 0.0
    #: Time from the end of the last fault until the cluster was healthy.
    whole_s: float = 0.0
    recoveries_s: list[float] = field(default_factory=list)


class Run:
    """A cluster and its clients. Data and logs go to `folder`, progress messages to `say`."""

    def __init__(
        self, folder: Path, seed: int, say: Callable[[str], None], *, is_secure: bool = False
    ) -> None:
        self._say = say
        self._random = random.Random(seed)
        self._evidence = Evidence()
        self._begin = time.monotonic()
        self.report = Report(seed)
        self._cluster = Cluster(folder, Network(), is_secure=is_secure)
        self._cluster.start(PARTITIONS)
        connection, evidence = self._cluster.connection, self._evidence
        self._writers = [
            Writer(f"writer-{n}", evidence, connection, topic, PARTITIONS[topic], _PAUSE_S)
            for n, topic in enumerate((PLAIN, PLAIN, INPUT))
        ]
        self._members = [
            Member(f"{protocol}-{n}", evidence, connection, f"group-{protocol}", protocol, PLAIN)
            for protocol in _PROTOCOLS
            for n in range(2)
        ]
        self._processors = [
            Processor(f"processor-{n}", evidence, connection, _PROCESSORS, INPUT, OUTPUT)
            for n in range(2)
        ]
        watched = [(f"group-{protocol}", PLAIN) for protocol in _PROTOCOLS] + [(_PROCESSORS, INPUT)]
        self._observers = [
            Observer(f"observer of {group}", evidence, connection, group, topic, PARTITIONS[topic])
            for group, topic in watched
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
        """Inject faults one after the other, hold them, and undo them in any order."""
        faults: list[fault.Fault] = []
        for kind in kinds:
            if faults and kind.name.startswith(("kill", "pause", "fill", "isolate-pair")):
                # A second fault must not act on a process: the first one may have stopped it.
                continue
            faults.append(kind.strike(self._cluster, self._random))
            self._tell(f"{kind.name}: {faults[-1].what}")
        time.sleep(self._random.uniform(2, 13))
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
            self._tell(f"healthy after {took_s:.1f} s")
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
                    self.report.violations.append(f"{broker.name} exited with code {code}")
                self._await_progress()
                broker.start(wait=False)
                self._tell(f"{broker.name} started")
                self._recover(whole_s_max)
                self._await_progress()
        return self._finish()

    def _await_progress(self) -> None:
        """Wait until every producer and every group has made progress."""
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

        await_true(have_moved, "producers and groups to make progress", CATCH_UP_S_MAX)

    # Clients

    @property
    def _readers(self) -> list[Client]:
        return [*self._members, *self._processors, *self._observers]

    def _start_clients(self) -> None:
        for client in (*self._writers, *self._readers):
            client.start()

    def _finish(self) -> Report:
        """Stop the clients, read all records back, and judge the evidence."""
        self._stop(self._writers)
        self._tell("producers have finished")
        written = {topic: self._read_back(topic) for topic in (PLAIN, INPUT)}
        self._await_groups(written)
        self._tell("groups have caught up")
        self._stop(self._readers)
        self._tell("groups have finished")
        outputs = self._read_back(OUTPUT)
        report, evidence = self.report, self._evidence
        report.violations += evidence.judge()
        for protocol in _PROTOCOLS:
            names = [each.name for each in self._members if each.group == f"group-{protocol}"]
            report.violations += skipped(evidence.operations, names, written[PLAIN])
        report.violations += not_once(written[INPUT], outputs)
        report.errors = evidence.errors
        report.acknowledged = sum(len(writer.acknowledged) for writer in self._writers)
        report.processed = sum(map(len, outputs.seen.values()))
        report.gap_s_max = round(max(writer.gap_s_max for writer in self._writers), 2)
        return report

    def _stop(self, clients: Sequence[Client]) -> None:
        for client in clients:
            client.stop()
        deadline = time.monotonic() + FINISH_S_MAX
        for client in clients:
            client.join(max(0.0, deadline - time.monotonic()))
            if client.is_alive():
                self.report.violations.append(f"{client.name} did not finish")
                faulthandler.dump_traceback()

    def _read_back(self, topic: str) -> Poll:
        begin_ns = now_ns()
        found = read_all(self._cluster.connection, topic, PARTITIONS[topic], CATCH_UP_S_MAX)
        self._evidence.add("auditor", Outcome.OK, begin_ns, [found])
        return found

    def _await_groups(self, written: dict[str, Poll]) -> None:
        """Wait until the groups have committed all records."""

        def behind() -> list[str]:
            return [
                f"{each.group} has committed {each.latest} of {written[each.topic].ends}"
                for each in self._observers
                if each.latest != written[each.topic].ends
            ]

        deadline = time.monotonic() + CATCH_UP_S_MAX
        while late := behind():
            if time.monotonic() > deadline:
                self.report.violations += late
                faulthandler.dump_traceback()
                return
            time.sleep(_LOOK_S)
