"""The output of a query is exact if workers, executors, driver and broker are killed at random.

`SINK_KILLS` is the number of kills (100); `SINK_SEED` repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from harness.seed import choose_seed, report
from spark.sink.copy_harness import ENVIRONMENT, Copy, kill, shuffled

KILLS = int(os.environ.get("SINK_KILLS", "100"))
#: Spark's own sink shows duplicates after a few kills.
KILLS_TO_TELL = min(KILLS, 20)
#: The share of each target in percent. Killing only the driver leaves its executors running.
WEIGHTS = {"worker": 50, "executor": 18, "driver": 9, "driver alone": 7, "broker": 16}
#: The deadline of the whole run, per kill.
SECONDS_MAX = 90


@pytest.mark.parametrize(
    "kills", [15, pytest.param(KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_tasks_and_drivers_can_be_killed_at_any_moment(tmp_path: Path, kills: int) -> None:
    seed = choose_seed("SINK_SEED")
    command = [
        sys.executable,
        "-m",
        "spark.sink.crash_program",
        str(tmp_path),
        str(kills),
        str(seed),
    ]
    subprocess.run(command, check=True, env=ENVIRONMENT)


@pytest.mark.soak
@pytest.mark.timeout(KILLS * SECONDS_MAX + 300)
def test_output_is_exact_whenever_something_is_killed(tmp_path: Path) -> None:
    with Copy(tmp_path) as copy:
        done = _attack(copy, KILLS)
        output = copy.finish()
        expected = copy.expected()
    assert output == expected, {
        "missing": expected - output,
        "too many": output - expected,
        "killed": done,
    }


@pytest.mark.soak
@pytest.mark.usefixtures("jvm_connector")
@pytest.mark.timeout(KILLS_TO_TELL * SECONDS_MAX + 300)
def test_sparks_own_sink_has_duplicates(tmp_path: Path) -> None:
    with Copy(tmp_path, sink="kafka") as copy:
        done = _attack(copy, KILLS_TO_TELL)
        output = copy.finish()
    report(f"{output.total() - copy.rows} rows too many of {copy.rows}")
    assert output.keys() == copy.expected().keys()
    assert output.total() > copy.rows, f"no duplicates after killing {done}"


def _attack(copy: Copy, kills: int) -> Counter[str]:
    """Kill `kills` times while a batch is in progress. Return the number of kills of each kind."""
    chooser = random.Random(choose_seed("SINK_SEED"))
    done: Counter[str] = Counter()
    start = time.monotonic()
    for what in shuffled(WEIGHTS, kills, chooser):
        copy.feed()
        if chooser.random() < 0.7:
            # Otherwise the kill hits the recovery of the query.
            copy.wait_for_rows(copy.rows - copy.plan.rows_per_batch)
        copy.wait_for_batch()
        time.sleep(chooser.uniform(0, copy.checkpoint.seconds_of_a_batch()))
        where = copy.checkpoint.begun, copy.checkpoint.done
        kill_something(copy, what, chooser)
        done[what] += 1
        moment = "in" if where[0] > where[1] else "after"
        report(f"{time.monotonic() - start:.0f} s: {what} {moment} batch {where[0]}")
    return done


def kill_something(copy: Copy, what: str, chooser: random.Random) -> None:
    """Kill a target if it exists."""
    if what == "broker":
        copy.broker.kill()
        time.sleep(chooser.uniform(0, 1))
        copy.broker.start()
    elif what == "driver":
        copy.driver.kill()
    elif what == "driver alone":
        copy.driver.kill_alone()
    elif what == "executor":
        for each in copy.driver.executors()[: chooser.randint(1, 2)]:
            kill(each)
    else:
        found = copy.driver.workers()
        for each in chooser.sample(found, min(len(found), chooser.choice((1, 1, 2, 3)))):
            kill(each)
