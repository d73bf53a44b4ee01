"""Groups of unmodified clients whose members are killed, paused past their session and replaced.

Partitions are added meanwhile. Each record is processed at least once, the order of a key is kept,
and a fenced member cannot commit. `checker` defines the rules.

GROUP_SEED replays the choice of victims (not the members' timing); GROUP_ROUNDS sets the number of
rounds of all faults in the long run.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from group_clients.crew import Crew, Plan
from group_clients.member import CLIENTS, Start
from harness.process.brokers import COUNT_NAMES, ONE, THREE, Brokers, started
from harness.seed import choose_seed

QUICK = Plan(
    members=3, partitions=6, records_per_second=100, session_ms=4000, settle_seconds_max=90
)
#: Long enough for members to start beside three brokers: a starting JVM delays heartbeats.
QUICK_ON_THREE = replace(QUICK, session_ms=6000)
FULL = Plan(
    members=8, partitions=24, records_per_second=300, session_ms=6000, settle_seconds_max=120
)
ROUNDS = int(os.environ.get("GROUP_ROUNDS", "2"))


#: The cases of `make test`, with the number of brokers. The soak runs the others.
QUICK_CASES = [
    ("confluent-classic", 1),
    ("confluent-consumer", 1),
    ("confluent-consumer", 3),
    ("aiokafka", 3),
    ("kafka-python", 3),
    ("kafkajs", 1),
    ("java-consumer", 3),
]


def small_groups() -> Iterator[Any]:
    """Return every client with one broker and with three."""
    for case in itertools.product(CLIENTS, (1, 3)):
        marks = () if case in QUICK_CASES else (pytest.mark.soak,)
        yield pytest.param(*case, marks=marks, id=f"{case[0]}-{COUNT_NAMES[case[1]]}")


def quick_plan(broker_count: int) -> Plan:
    return QUICK if broker_count == 1 else QUICK_ON_THREE


@pytest.fixture(scope="module")
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    settings = quick_plan(request.param).settings()
    with started(tmp_path_factory.mktemp("brokers"), request.param, settings) as running:
        yield running
        running.check_logs()


@pytest.mark.parametrize(
    ("name", "brokers"), list(small_groups()), indirect=["brokers"], scope="module"
)
def test_a_small_group(brokers: Brokers, start_of: Callable[[str], Start], name: str) -> None:
    chance = random.Random(choose_seed("GROUP_SEED"))
    with Crew(brokers, start_of(name), quick_plan(len(brokers)), chance) as crew:
        crew.wait_until_stable()
        crew.kill(1)
        crew.add_partitions(3)
        crew.fence_one()
        crew.finish()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [ONE, THREE])
@pytest.mark.parametrize("name", CLIENTS)
def test_eight_members(
    tmp_path: Path, start_of: Callable[[str], Start], name: str, count: int
) -> None:
    chance = random.Random(choose_seed("GROUP_SEED"))
    with (
        started(tmp_path, count, FULL.settings()) as brokers,
        Crew(brokers, start_of(name), FULL, chance) as crew,
    ):
        crew.wait_until_stable()
        for _ in range(ROUNDS):
            happenings: list[Callable[[], None]] = [
                lambda: crew.kill(1),
                lambda: crew.kill(3),
                crew.restart_one,
                crew.fence_one,
                crew.pause_one,
                lambda: crew.add_partitions(3),
            ]
            chance.shuffle(happenings)
            for happening in happenings:
                happening()
        crew.finish()
        brokers.check_logs()
