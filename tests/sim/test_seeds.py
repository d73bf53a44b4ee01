"""Simulated runs under seeded faults, as in `sim.run`. `make sim` runs more of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sim.planted import PLANTED

_TESTS = Path(__file__).parent.parent
#: Each part is a process of its own, so that workers can run parts in parallel.
_PART = 400
_PARTS = 5
_SOAK = int(os.environ.get("SIM_SEEDS", "20000"))
_SOAK_PARTS = 10


def simulate(*arguments: object, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run the simulator in a process of its own: it forks, and exits without clean-up."""
    environment = {**os.environ, "PYTHONPATH": str(_TESTS), "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-m", "sim", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_seed_finds_a_violation(part: int) -> None:
    done = simulate("--start", part * _PART, "--count", _PART)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{_PART} seeds, 0 failed" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_SOAK_PARTS))
def test_no_seed_of_many_finds_a_violation(part: int) -> None:
    count = _SOAK // _SOAK_PARTS
    done = simulate("--start", part * count, "--count", count, "--keep-going")
    assert done.returncode == 0, done.stdout + done.stderr


def test_seeds_differ_and_each_replays_exactly_in_another_process() -> None:
    one = simulate("--seed", 5, 51, "--trace", hash_seed="1")
    other = simulate("--seed", 5, 51, "--trace", hash_seed="2")
    assert one.returncode == 0, one.stdout[-2000:] + one.stderr
    assert "fault:" in one.stdout
    assert one.stdout.splitlines() == other.stdout.splitlines()
    first, second = re.findall("digest ([0-9a-f]+)", one.stdout)
    assert first != second


def test_a_seed_has_the_same_digest_in_any_order_of_seeds() -> None:
    """Addresses of objects, which depend on earlier runs, do not change a run."""
    seeds = range(40)
    ends = [
        dict(re.findall("seed ([0-9]+): digest ([0-9a-f]+)", simulate("--seed", *order).stdout))
        for order in (seeds, seeds[::-1])
    ]
    assert ends[0] == ends[1]
    assert len(ends[0]) == len(seeds)


#: The first seed that finds each bug. After a change of the broker, a later seed may find it.
_FOUND_BY = {
    "accept-stale-leader": 70,
    "acknowledge-early": 2,
    "elect-the-empty-disk": 33,
    "expand-early": 15,
    "forget-the-eligible": 33,
    "lose-epoch-at-roll": 39,
    "skip-transaction-queue": 3,
    "truncate-by-high-watermark": 10,
    "trust-unclean-restart": 717,
}


def test_every_planted_bug_has_a_test() -> None:
    assert _FOUND_BY.keys() == PLANTED.keys()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", _FOUND_BY)
def test_a_planted_bug_is_found(bug: str) -> None:
    _find(bug, start=_FOUND_BY[bug])


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bug", _FOUND_BY)
def test_a_planted_bug_is_found_by_the_seeds_that_pass_without_it(bug: str) -> None:
    _find(bug, start=0)


def _find(bug: str, *, start: int) -> None:
    done = simulate("--plant", bug, "--start", start, "--count", _PART * _PARTS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"--plant {bug} --trace" in done.stdout
