"""The metrics of `worker run` as Prometheus text: the sums of all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from millstream.cli.worker.report import BOUNDS, ReportTotals
from millstream.cli.worker.status_server import Page

if TYPE_CHECKING:
    from millstream.cli.worker.supervisor import WorkerSupervisor

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: The counters by their name in `Worker.counts`.
_COUNTERS: Final = {
    "done": ("jobs_done", "Messages that were processed."),
    "failed": ("attempts_failed", "Attempts that failed."),
    "retried": ("jobs_retried", "Further attempts that were planned."),
    "dead": ("jobs_dead", "Messages that became dead letters."),
    "timed_out": ("attempts_timed_out", "Attempts that ended at their deadline."),
    "expired": ("jobs_expired", "Messages whose time to live ended before an attempt."),
    "parked": ("jobs_parked", "Moves of messages that are due much later."),
}


class _Families:
    """A collector of prometheus_client for families that exist already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def page_of(families: Iterable[Metric]) -> Page:
    """Return the page with these metrics."""
    registry = CollectorRegistry(auto_describe=False)
    collector: Any = _Families(families)
    registry.register(collector)
    return Page(generate_latest(registry), CONTENT_TYPE)


def worker_page(supervisor: WorkerSupervisor) -> Page:
    """Return the metrics of all processes."""
    return page_of(list(_families(supervisor)))


def _families(supervisor: WorkerSupervisor) -> Iterator[Metric]:
    totals, group = supervisor.totals(), supervisor.group
    for name, (metric, text) in _COUNTERS.items():
        yield _counter(metric, text, group, totals.counts.get(name, 0))
    yield _gauge("jobs_in_progress", "Handlers that run.", group, totals.in_progress)
    yield _gauge("jobs_held", "Messages that are read and not finished.", group, totals.held)
    yield _durations(totals, group)
    yield _gauge("processes", "Worker processes that run.", group, supervisor.running)
    text = "Starts of processes after one had ended unexpectedly."
    yield _counter("process_restarts", text, group, supervisor.restarts)
    if totals.lag is not None:
        yield _gauge("lag_records", "Records that the group has not committed.", group, totals.lag)
        text = "Processes like these that would catch up within a minute."
        yield _gauge("processes_wanted", text, group, totals.workers_wanted or 0)


def _counter(name: str, text: str, group: str, value: float) -> Metric:
    family = CounterMetricFamily(f"millstream_worker_{name}", text, labels=["group"])
    family.add_metric([group], value)
    return family


def _gauge(name: str, text: str, group: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"millstream_worker_{name}", text, labels=["group"])
    family.add_metric([group], value)
    return family


def _durations(totals: ReportTotals, group: str) -> Metric:
    family = HistogramMetricFamily(
        "millstream_worker_job_duration_seconds",
        "How long handler calls took.",
        labels=["group", "topic"],
    )
    for topic, durations in sorted(totals.durations.items()):
        buckets, count = [], 0
        for bound, number in zip((*BOUNDS, float("inf")), durations.counts, strict=True):
            count += number
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", count))
        family.add_metric([group, topic], buckets, durations.seconds)
    return family
