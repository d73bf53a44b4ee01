"""A query killed at random moments: its workers, executors, driver, and the broker. Its output is
exact.

`SINK_KILLS` says how often (100), `SINK_SEED` repeats a run's choices.
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
#: Spark's own sink repeats rows after few of them.
KILLS_TO_TELL = min(KILLS, 20)
#: What is killed, out of a hundred. A driver alone leaves executors that don't know it yet.
WEIGHTS = {"worker": 50, "executor": 18, "driver": 9, "driver alone": 7, "broker": 16}
#: Of the whole run, a kill.
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
def test_the_same_with_sparks_own_sink_has_duplicates(tmp_path: Path) -> None:
    with Copy(tmp_path, sink="kafka") as copy:
        done = _attack(copy, KILLS_TO_TELL)
        output = copy.finish()
    report(f"{output.total() - copy.rows} rows too many of {copy.rows}")
    assert output.keys() == copy.expected().keys()
    assert output.total() > copy.rows, f"no duplicates after killing {done}"


def _attack(copy: Copy, kills: int) -> Counter[str]:
    """Kill so often, each time while a batch is under way; what was killed."""
    chooser = random.Random(choose_seed("SINK_SEED"))
    done: Counter[str] = Counter()
    start = time.monotonic()
    for what in shuffled(WEIGHTS, kills, chooser):
        copy.feed()
        if chooser.random() < 0.7:
            # Else it comes while the query recovers.
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
    """If it is there at this moment."""
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
