"""The quarantine of flaky tests, which are listed in `tests/quarantine.toml`.

A pytest plugin. It retries a listed test once after a failure, and no other test. The end of the
run names each listed test that ran, its reason, and whether it needed the retry. A malformed list
stops the run.
"""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

LIST: Final = Path(__file__).parents[1] / "quarantine.toml"
#: A property of a test's report, which workers send to the main process.
_PROPERTY: Final = "quarantine"
_FIELDS: Final = {"name": str, "reason": str, "date": dt.date}


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    reason: str
    date: dt.date

    def covers(self, nodeid: str) -> bool:
        """Whether a test is the listed one, with or without parameters."""
        return nodeid == self.name or nodeid.startswith(f"{self.name}[")


def read_list(path: Path) -> list[Entry]:
    """Return the entries of a list. Raises ValueError for missing, unknown or repeated ones."""
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    rows: list[dict[str, Any]] = content.pop("test", [])
    if content or not isinstance(rows, list):
        raise ValueError(f"{path}: expected only [[test]] tables")
    for row in rows:
        kinds = {key: type(value) for key, value in row.items()}
        if kinds != _FIELDS or not row["name"] or not row["reason"].strip():
            raise ValueError(
                f"{path}: {row} must have a name, a reason and a date, and no other key"
            )
    names = [row["name"] for row in rows]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: a test is listed twice")
    return [Entry(**row) for row in rows]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quarantine", default=str(LIST), help="the list of tests that are retried")


def pytest_configure(config: pytest.Config) -> None:
    try:
        entries = read_list(Path(config.getoption("--quarantine")))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(_Quarantine(entries), "millstream-quarantine")


class _Quarantine:
    """Runs tests in each worker, and reports them in the main process."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)
        #: The outcome of each listed test that ran, by its name.
        self._outcomes: dict[str, str] = {}

    def _entry(self, nodeid: str) -> Entry | None:
        return next((entry for entry in self._entries if entry.covers(nodeid)), None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        name = _name(item)
        if self._entry(name) is None:
            return None
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failure = next((report for report in reports if report.failed), None)
        outcome = "skipped" if any(report.skipped for report in reports) else "passed"
        if failure is not None:
            outcome = f"failed first ({_last_line(failure)})"
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            has_passed = not any(report.failed for report in reports)
            outcome += ", then passed" if has_passed else ", then failed again"
        for report in reports:
            if report.when == "teardown":
                report.user_properties.append((_PROPERTY, [name, outcome]))
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        value: Any
        for key, value in report.user_properties:
            if key == _PROPERTY:
                name, outcome = value
                self._outcomes[name] = outcome

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._outcomes:
            return
        terminalreporter.section("quarantined tests")
        for name, outcome in sorted(self._outcomes.items()):
            entry = self._entry(name)
            assert entry is not None
            terminalreporter.write_line(f"{name} {outcome}; since {entry.date}: {entry.reason}")


def _name(item: pytest.Item) -> str:
    """Return the node id without the group that xdist workers append."""
    marker = item.get_closest_marker("xdist_group")
    return item.nodeid if marker is None else item.nodeid.removesuffix(f"@{marker.args[0]}")


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    return next((line for line in text.splitlines() if line.strip()), "no message")[:200]
