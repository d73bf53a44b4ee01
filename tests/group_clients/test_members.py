"""Groups of unmodified clients whose members are killed, paused past their session, and replaced,
while partitions are added: each record is processed at least once, the order of a key is kept,
and who was fenced cannot commit. What that means exactly is said in `checker`.

GROUP_SEED replays the choice of victims (not the members' timing); GROUP_ROUNDS sets how often the
long run goes through everything that can happen.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from group_clients.crew import Crew, Plan
from group_clients.member import CLIENTS, Start
from harness.broker_process import BrokerProcess
from harness.seed import choose_seed

QUICK = Plan(
    members=3, partitions=6, records_per_second=100, session_ms=2500, settle_seconds_max=90
)
FULL = Plan(
    members=8, partitions=24, records_per_second=300, session_ms=6000, settle_seconds_max=120
)
ROUNDS = int(os.environ.get("GROUP_ROUNDS", "2"))


@pytest.mark.parametrize("name", ["confluent-classic", "confluent-consumer"])
def test_a_small_group(tmp_path: Path, start_of: Callable[[str], Start], name: str) -> None:
    chance = random.Random(choose_seed("GROUP_SEED"))
    with (
        BrokerProcess(tmp_path, QUICK.settings()) as broker,
        Crew(broker, start_of(name), QUICK, chance) as crew,
    ):
        crew.settle()
        crew.kill(1)
        crew.add_partitions(3)
        crew.fence_one()
        crew.finish()
        assert "Traceback" not in broker.log_text()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CLIENTS)
def test_eight_members(tmp_path: Path, start_of: Callable[[str], Start], name: str) -> None:
    chance = random.Random(choose_seed("GROUP_SEED"))
    with (
        BrokerProcess(tmp_path, FULL.settings()) as broker,
        Crew(broker, start_of(name), FULL, chance) as crew,
    ):
        crew.settle()
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
        assert "Traceback" not in broker.log_text()
