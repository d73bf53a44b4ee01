"""The gauges of client metrics: the pushed series, and counts of series, pushes and rejections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.exposition import LabelValues
from millstream.broker.telemetry.telemetry import Telemetry


def show_telemetry(metrics: Metrics, telemetry: Telemetry) -> None:
    """Add the series that clients push, and counts of them."""
    metrics.add_families(telemetry.series.families)
    metrics.add_gauge(
        "client_instances",
        "Clients that requested their subscription, or pushed metrics.",
        lambda: telemetry.instances,
    )
    metrics.add_gauge(
        "client_metrics_series", "Series that clients pushed.", lambda: len(telemetry.series)
    )
    metrics.add_gauge(
        "metrics_clients_folded",
        "Clients beyond the label budget, whose metrics are not shown.",
        lambda: telemetry.series.folded,
    )
    metrics.add_counter(
        "client_metrics_pushes_total",
        "Pushes of metrics accepted from clients.",
        lambda: telemetry.pushes,
    )
    metrics.add_rows(
        "client_metrics_rejected_total",
        "counter",
        "Telemetry requests of clients that were rejected.",
        ("error",),
        lambda: _rows(telemetry.rejected),
    )
    metrics.add_rows(
        "client_metrics_dropped_points_total",
        "counter",
        "Values pushed by clients that are not shown, by reason.",
        ("reason",),
        lambda: _rows(telemetry.series.dropped),
    )


def _rows(counts: Counter[str]) -> Iterator[tuple[LabelValues, float]]:
    for name, count in sorted(counts.items()):
        if count:
            yield (name,), count
