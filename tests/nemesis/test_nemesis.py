"""Three brokers and three etcd members under load, with faults or a rolling restart.

`run` describes a run and its checks. A failure leaves the run's folder with the logs of all
processes, and prints the seed. The seed replays the order of the faults, but not the timing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.process.etcd_process import require_etcd
from nemesis.enclosure import enclosed, obstacle

pytestmark = pytest.mark.xdist_group("nemesis")

_TESTS = Path(__file__).parent.parent
#: Time besides the run itself: start, reading everything back, and a busy machine.
_SPARE_S = 600
#: Time for the cluster to become healthy on a busy machine.
_WHOLE_S_MAX = 120


def run(tmp_path: Path, *arguments: str, minutes: float) -> dict[str, Any]:
    """Return the report of a run without violations."""
    require_etcd()
    if reason := obstacle():
        pytest.skip(reason)
    seed = int(os.environ.get("NEMESIS_SEED", random.SystemRandom().randrange(10**6)))
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "nemesis", str(folder), "--seed", str(seed), *arguments]
    process = subprocess.run(
        enclosed(command),
        cwd=_TESTS,
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=minutes * 60 + _SPARE_S,
        check=False,
    )
    assert process.returncode == 0, f"seed {seed}, logs in {folder}:\n{process.stdout[-8000:]}"
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    shutil.rmtree(folder)
    return report


@pytest.mark.timeout(900)
def test_a_rolling_restart_is_not_noticed(tmp_path: Path) -> None:
    report = run(tmp_path, "--roll", "1", "--whole-s-max", str(_WHOLE_S_MAX), minutes=2)
    assert report["errors"] == []
    assert report["acknowledged"] > 0


@pytest.mark.timeout(900)
def test_no_record_is_lost_under_faults(tmp_path: Path) -> None:
    """The cluster is secure: every connection is encrypted and logged in."""
    limits = ("--minutes", "2", "--whole-s-max", str(_WHOLE_S_MAX))
    report = run(tmp_path, "--secure", *limits, minutes=3)
    assert report["acknowledged"] > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("security", [[], ["--secure"]], ids=["open", "secure"])
def test_no_record_is_lost_in_a_long_run(tmp_path: Path, security: list[str]) -> None:
    minutes = float(os.environ.get("NEMESIS_MINUTES", "20"))
    report = run(tmp_path, "--minutes", str(minutes), *security, minutes=minutes)
    assert report["acknowledged"] > 0
    assert max(report["recoveries_s"]) <= 30
