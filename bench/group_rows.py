"""Cases for consumer groups: the cost of a rebalance for the other members, and the cost of
thousands of members and commits for a producer."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import rebalance, tools
from bench.brokers import REPOSITORY, Broker
from bench.case import Case, Figure, Plan
from bench.load.group_reader import KINDS

MEMBERS = 1000
COMMITS_PER_SECOND = 2000
#: The smallest share of the requested commit rate that still counts as the same load.
COMMIT_RATE_PART_MIN = 0.95
PRODUCER_LOAD = 0.5
#: Long enough for a heartbeat of every member.
MEMBERS_SECONDS_MIN = 6.0
TOPIC_PARTITIONS = 10
END_SECONDS_MAX = 60.0


def cases() -> Iterator[Case]:
    for kind in KINDS:
        yield Case(f"rebalance {kind}", rebalance_of(kind))
    yield Case("produce beside groups", ProduceBesideGroups())


def rebalance_of(kind: str) -> Callable[[Broker, Plan], list[Figure]]:
    def measure(broker: Broker, plan: Plan) -> list[Figure]:
        figures: list[Figure] = []
        for name, stalls in rebalance.observe(broker, kind).items():
            measured = {
                "the member that stands still longest": max(stalls.members),
                "partitions that stay": stalls.kept,
                "partitions that move": stalls.moved,
            }
            figures += [
                Figure(f"stall, {kind}, {name}, {what}", value, "ms", higher_is_better=False)
                for what, value in measured.items()
                if value is not None
            ]
        return figures

    return measure


class ProduceBesideGroups:
    """The latency of a producer at half load: alone, with live members, with members and many
    commits, and alone again at the end.

    The load is half the maximum rate of the broker that is measured first, for every broker and
    repeat: a faster broker does not get a higher load, which would raise its latency.
    """

    def __init__(self) -> None:
        self._rate: int | None = None

    def __call__(self, broker: Broker, plan: Plan) -> list[Figure]:
        topic = tools.create_topic(broker, "beside-groups", 1)
        most = tools.python(
            "flat_out", broker, topic=topic, acks="all", seconds=plan.latency_seconds
        )
        rate_max = most["records"] / most["seconds"]
        if self._rate is None:
            self._rate = int(rate_max * PRODUCER_LOAD)
        figures = _beside_groups(broker, plan, topic, self._rate)
        return [Figure("maximum rate of one producer", rate_max, "records/s", True), *figures]


def _beside_groups(broker: Broker, plan: Plan, topic: str, rate: int) -> list[Figure]:
    positions = tools.create_topic(broker, "positions", TOPIC_PARTITIONS)
    seconds = max(plan.latency_seconds, MEMBERS_SECONDS_MIN)

    def latency(what: str) -> list[Figure]:
        begin, before = time.monotonic(), broker.usage().cpu_seconds
        found = tools.python(
            "ack_latency",
            broker,
            topic=topic,
            rate=rate,
            acks="all",
            seconds=seconds,
            warm_up_seconds=plan.warm_up_seconds,
        )
        cpu = (broker.usage().cpu_seconds - before) / (time.monotonic() - begin)
        latencies = [
            Figure(f"ack latency at half load, {what}, {part}", found[part], "ms", False)
            for part in ("p50", "p99")
        ]
        return [*latencies, Figure(f"broker CPU at half load, {what}", cpu, "cores", False)]

    figures = latency("alone")
    beside = f"beside {MEMBERS:,} members"
    with running("members", broker, topic=positions, members=MEMBERS) as end_members:
        figures += latency(beside)
        with running("commits", broker, topic=positions, rate=COMMITS_PER_SECOND) as end_commits:
            figures += latency(f"{beside} and {COMMITS_PER_SECOND:,} commits/s")
            commits = end_commits()
        members = end_members()
    if commits["per_second"] < COMMITS_PER_SECOND * COMMIT_RATE_PART_MIN:
        raise RuntimeError(f"the load reached only {commits['per_second']:.0f} commits/s")
    if members["heartbeats"] < members["members"] or members["joins"]:
        raise RuntimeError(f"members rejoined or missed heartbeats: {members}")
    figures.append(Figure("commit latency meanwhile, p99", commits["p99"], "ms", False))
    figures += latency("alone again")
    tools.delete_topics(broker, topic, positions)
    return figures


@contextlib.contextmanager
def running(name: str, broker: Broker, **options: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run a program of load/ and wait until it is ready. Yields a function that ends it and returns
    its output."""
    command = tools.program(name, broker, **options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None

        def end() -> dict[str, Any]:
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate(timeout=END_SECONDS_MAX)
            if process.returncode:
                raise RuntimeError(f"{name} exited with code {process.returncode}")
            found: dict[str, Any] = json.loads(printed.splitlines()[-1])
            return found

        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{name} did not become ready")
            yield end
        finally:
            process.kill()
