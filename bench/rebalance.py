"""How long members of a group read nothing while another member joins or leaves.

librdkafka members read a topic with a steady rate of records. Another member joins and leaves. From
each of these moments until the group is stable, the case measures:

- for each remaining member: the longest time between two of its records;
- for partitions that stay with their member, and for those that move: the longest time without a
  record of the partition.

The longest time between two records without a rebalance is measured first, as the limit of machine
and rate. `python -m bench.rebalance` prints each member's figures for both brokers; the benchmark
has the worst of them as rows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from bench import tools
from bench.brokers import BROKERS, REPOSITORY, Broker
from bench.load.group_reader import KINDS
from millstream.env.termination import exit_at_sigterm

PARTITIONS = 12
MEMBERS = 3
RECORDS_PER_SECOND = 1200
CALM_SECONDS = 5.0
#: The wait after the last assignment, in which its records arrive.
AFTERMATH_SECONDS = 2.0
SETTLE_SECONDS_MAX = 120.0
END_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
MILLISECOND_NS = 1e6

#: Partition and arrival time of each record of a member, in order.
Arrivals: TypeAlias = Sequence[tuple[int, int]]


@dataclass(slots=True, frozen=True)
class Window:
    """The start and end of a rebalance in nanoseconds, and the owned partitions before and after.

    Members are in the order in which they joined.
    """

    name: str
    start: int
    end: int
    before: Sequence[frozenset[int]]
    after: Sequence[frozenset[int]]


@dataclass(slots=True, frozen=True)
class Stalls:
    """Stalls in milliseconds: of remaining members, of staying and of moving partitions."""

    members: Sequence[float]
    kept: float
    moved: float | None


class Reader:
    """A member in its own process, whose output goes to a file."""

    def __init__(self, broker: Broker, topic: str, group: str, kind: str, path: Path) -> None:
        self._path = path
        command = tools.program("group_reader", broker, topic=topic, group=group, kind=kind)
        with path.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, cwd=REPOSITORY)

    @property
    def owned(self) -> frozenset[int]:
        lines = self._path.read_text().split("\n")[:-1]
        found = [json.loads(line)["owned"] for line in lines]
        return frozenset(found[-1]) if found else frozenset()

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def arrivals(self) -> Arrivals:
        """Return the arrivals, after the process has ended."""
        if self._process.wait(END_SECONDS_MAX):
            raise RuntimeError(f"a member exited with code {self._process.returncode}")
        last = json.loads(self._path.read_text().splitlines()[-1])
        return [(partition, moment) for partition, moment in last["arrivals"]]

    def dispose(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def steady_records(broker: Broker, topic: str) -> Iterator[None]:
    options = {"topic": topic, "partitions": PARTITIONS, "rate": RECORDS_PER_SECOND}
    with subprocess.Popen(tools.program("steady", broker, **options), cwd=REPOSITORY) as producer:
        try:
            yield
        finally:
            producer.kill()


def wait_until_even(readers: Sequence[Reader]) -> list[frozenset[int]]:
    """Wait until the members share all partitions evenly. Return the partitions of each."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    share = PARTITIONS // len(readers)
    while True:
        owned = [reader.owned for reader in readers]
        if all(len(each) == share for each in owned) and len(union(owned)) == PARTITIONS:
            return owned
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the group does not become stable: {[sorted(each) for each in owned]}"
            )
        time.sleep(POLL_SECONDS)


def union(owned: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset(itertools.chain.from_iterable(owned))


def observe(broker: Broker, kind: str) -> dict[str, Stalls]:
    """Let a member join and leave. Return the stalls by the name of the window."""
    topic = tools.create_topic(broker, f"rebalance-{kind}", PARTITIONS)
    group = f"group-{kind}"
    with (
        tempfile.TemporaryDirectory(prefix="rebalance-") as folder,
        contextlib.ExitStack() as stack,
    ):

        def new_reader(number: int) -> Reader:
            reader = Reader(broker, topic, group, kind, Path(folder) / str(number))
            stack.callback(reader.dispose)
            return reader

        stack.enter_context(steady_records(broker, topic))
        readers = [new_reader(number) for number in range(MEMBERS)]
        at_first = wait_until_even(readers)
        time.sleep(AFTERMATH_SECONDS)
        calm_at = time.monotonic_ns()
        time.sleep(CALM_SECONDS)
        joined_at = time.monotonic_ns()
        guest = new_reader(MEMBERS)
        shared = wait_until_even([*readers, guest])
        time.sleep(AFTERMATH_SECONDS)
        left_at = time.monotonic_ns()
        guest.ask_to_end()
        at_last = wait_until_even(readers)
        time.sleep(AFTERMATH_SECONDS)
        ended_at = time.monotonic_ns()
        for reader in readers:
            reader.ask_to_end()
        arrivals = [reader.arrivals() for reader in [*readers, guest]]
    tools.delete_topics(broker, topic)
    windows = [
        Window("nothing", calm_at, joined_at, at_first, at_first),
        Window("join", joined_at, left_at, at_first, shared[:MEMBERS]),
        Window("leave", left_at, ended_at, shared[:MEMBERS], at_last),
    ]
    return {window.name: stalls_of(window, arrivals) for window in windows}


def stalls_of(window: Window, arrivals: Sequence[Arrivals]) -> Stalls:
    """Return the stalls of a window. `arrivals` has the remaining members first."""
    kept = union(old & new for old, new in zip(window.before, window.after, strict=True))
    by_partition: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for each in arrivals:
        for partition, moment in each:
            by_partition[partition].append(moment)
    stalls = {
        number: largest_gap_ms(sorted(moments), window) for number, moments in by_partition.items()
    }
    return Stalls(
        [
            largest_gap_ms([moment for _, moment in each], window)
            for each in arrivals[: len(window.before)]
        ],
        max((stalls[number] for number in kept), default=0.0),
        max((stalls[number] for number in stalls.keys() - kept), default=None),
    )


def largest_gap_ms(moments: Sequence[int], window: Window) -> float:
    """Return the longest time between two arrivals that overlaps the window."""
    edges = [min([window.start, *moments]), *moments, max([window.end, *moments])]
    gaps = [
        later - earlier
        for earlier, later in itertools.pairwise(edges)
        if later > window.start and earlier < window.end
    ]
    return max(gaps, default=0) / MILLISECOND_NS


def table_of(found: dict[tuple[str, str], dict[str, Stalls]]) -> Table:
    table = Table(title="Longest time without a record, ms")
    for column in ("broker", "members", "meanwhile", "each member that stays"):
        table.add_column(column)
    table.add_column("partitions that stay", justify="right")
    table.add_column("that move", justify="right")
    for (broker, kind), windows in found.items():
        for name, stalls in windows.items():
            members = ", ".join(f"{each:,.0f}" for each in stalls.members)
            moved = "-" if stalls.moved is None else f"{stalls.moved:,.0f}"
            table.add_row(broker, kind, name, members, f"{stalls.kept:,.0f}", moved)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rebalance", description=__doc__)
    parser.add_argument(
        "--brokers", default="kafka,millstream", help="brokers to measure, in order"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of members to measure")
    options = parser.parse_args()
    exit_at_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 160)
    found: dict[tuple[str, str], dict[str, Stalls]] = {}
    for name in options.brokers.split(","):
        broker = BROKERS[name]()
        try:
            broker.start()
            for kind in options.kinds.split(","):
                found[name, kind] = observe(broker, kind)
                console.print(f"{name}, {kind}: {found[name, kind]}", highlight=False)
        finally:
            broker.remove()
    console.print(table_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
