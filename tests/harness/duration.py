"""Recorded durations: which group of tests runs first.

A pytest plugin. `tests/durations.json` has the seconds that each group of tests took in an earlier
run, where a group is what one worker runs: the tests with the same `xdist_group`, or a single test.
Long groups run first, so that no worker is left with a long one at the end. A group without a
recorded duration counts as medium. `--record-durations` writes the file after a run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

FILE: Final = Path(__file__).parents[1] / "durations.json"
#: Assumed for a group that has no recorded duration.
UNKNOWN_S: Final = 5.0
#: Groups that are faster are not recorded.
RECORDED_S_MIN: Final = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write the seconds of each group of tests to {FILE.name}",
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if config.getoption("--record-durations") and not is_worker:
        config.pluginmanager.register(Recorder(FILE), "millstream-durations")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort(items, read(FILE))


class Recorder:
    """Adds up the durations of each group in the main process, and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[group_of_report(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        write(self._path, self._seconds)


def write(path: Path, seconds: dict[str, float]) -> None:
    """Write durations, the longest first."""
    rows = {
        group: round(value, 1)
        for group, value in sorted(seconds.items(), key=lambda row: (-row[1], row[0]))
        if value >= RECORDED_S_MIN
    }
    path.write_text(json.dumps(rows, indent=1) + "\n")


def read(path: Path) -> dict[str, float]:
    """Return the recorded durations by group; none if there is no file."""
    if not path.exists():
        return {}
    rows: dict[str, float] = json.loads(path.read_text())
    return rows


def group_of_report(nodeid: str) -> str:
    """Return the group of a test from its id in a report: xdist appends it after an `@`."""
    name, _, group = nodeid.rpartition("@")
    return group if name and "]" not in group and "::" not in group else nodeid


def group_of_item(item: pytest.Item) -> str:
    """Return the group of a test that has one."""
    marker = item.get_closest_marker("xdist_group")
    assert marker is not None
    return str(marker.args[0])


def sort(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Sort tests in place: groups that take longest first, tests of a group as they were.

    Tests without a group have the rank of the longest of them in their file, so that a file's tests
    stay together: they share fixtures."""
    files: dict[str, float] = {}
    for name, value in seconds.items():
        file, separator, _ = name.partition("::")
        if separator:
            files[file] = max(value, files.get(file, 0.0))
    unknown_s = UNKNOWN_S if seconds else 0.0

    def rank(item: pytest.Item) -> float:
        if item.get_closest_marker("xdist_group") is None:
            return -files.get(item.nodeid.partition("::")[0], unknown_s)
        return -seconds.get(group_of_item(item), unknown_s)

    items.sort(key=rank)
