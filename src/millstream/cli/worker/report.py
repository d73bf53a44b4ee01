"""What a worker process reports to its supervisor: one line of JSON, several times a second. Pure.

Counters grow while the process lives. `ReportTotals` adds those of processes that ended, so that
the sums never fall.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

#: Upper bounds of the duration histogram in seconds.
BOUNDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
#: The outcomes of `Worker.counts`.
OUTCOMES: Final = ("done", "failed", "retried", "dead", "timed_out", "expired", "parked")


class Durations(msgspec.Struct):
    """How long the handler calls of one topic took. `counts` has one entry per bound and one
    more.
    """

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one call."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def add(self, other: Durations) -> None:
        """Add the calls of another process."""
        self.counts = [
            ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.seconds += other.seconds


class ProcessReport(msgspec.Struct):
    """The state of one process."""

    group: str
    #: The process is a member of its group.
    is_ready: bool = False
    #: By the names in `OUTCOMES`.
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    in_progress: int = 0
    held: int = 0
    durations: dict[str, Durations] = msgspec.field(default_factory=dict)
    #: Of the whole group; None unless this process measures it.
    lag: int | None = None
    workers_wanted: int | None = None


@dataclass(slots=True)
class ReportTotals:
    """The sums of all processes."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    durations: dict[str, Durations] = field(default_factory=dict)
    in_progress: int = 0
    held: int = 0
    lag: int | None = None
    workers_wanted: int | None = None

    def add_counters(self, report: ProcessReport) -> None:
        """Add what a process has counted."""
        for name, count in report.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        for topic, durations in report.durations.items():
            self.durations.setdefault(topic, Durations()).add(durations)

    def add(self, report: ProcessReport) -> None:
        """Add a process that runs."""
        self.add_counters(report)
        self.in_progress += report.in_progress
        self.held += report.held
        if report.lag is not None:
            self.lag, self.workers_wanted = report.lag, report.workers_wanted


def totals_of(ended: ReportTotals, reports: Iterable[ProcessReport]) -> ReportTotals:
    """Return the sums of processes that ended and of those that run."""
    found = ReportTotals()
    found.add_counters(ProcessReport("", counts=ended.counts, durations=ended.durations))
    for report in reports:
        found.add(report)
    return found
