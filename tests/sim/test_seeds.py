"""The cluster under seeded faults: `make sim` runs more of them. See `run` for what one is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.planted import PLANTED

_TESTS = Path(__file__).parent.parent
#: In parts so that workers can share them.
_PART = 200
_PARTS = 10
_SOAK = 2000


def simulate(*arguments: object, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """In a process of its own: runs fork, and end without cleaning up."""
    environment = {**os.environ, "PYTHONPATH": str(_TESTS), "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-m", "sim", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("part", range(_PARTS))
def test_nothing_goes_wrong(part: int) -> None:
    done = simulate("--start", part * _PART, "--count", _PART)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{_PART} seeds, 0 failed" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_goes_wrong_in_many_runs() -> None:
    done = simulate("--start", _PARTS * _PART, "--count", _SOAK, "--keep-going")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", [5, 51])
def test_a_seed_replays_exactly_in_another_process(seed: int) -> None:
    one = simulate("--seed", seed, "--trace", hash_seed="1")
    other = simulate("--seed", seed, "--trace", hash_seed="2")
    assert one.returncode == 0, one.stdout[-2000:] + one.stderr
    assert "fault:" in one.stdout
    assert one.stdout.splitlines() == other.stdout.splitlines()


def test_seeds_differ() -> None:
    assert simulate("--seed", 1).stdout != simulate("--seed", 2).stdout


#: These need more faults to meet, and so more runs to be found.
_RARE = ("accept-stale-leader", "trust-unclean-restart")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=pytest.mark.soak if bug in _RARE else ()) for bug in sorted(PLANTED)],
)
def test_a_planted_bug_is_found(bug: str) -> None:
    done = simulate("--plant", bug, "--count", _SOAK)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"--plant {bug} --trace" in done.stdout
