"""The metrics of client quotas: what clients with a quota used, and for how long each is throttled.

Clients without a quota have no rows. A label is empty where the quota is shared: by all client ids
of a user, or by all users of a client id. Beyond the label budget clients share the row `_other`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from millstream.broker.metrics.broker_metrics import OTHER, Metrics
from millstream.broker.metrics.exposition import Family, LabelValues, Value
from millstream.broker.metrics.label_budget import LabelBudget, is_showable
from millstream.security.quota.limiter import Limiter, Meter
from millstream.security.quota.quota_table import Scope
from millstream.security.quota.quota_type import QuotaName

_LABELS: Final = ("user", "client_id")
#: The name of the use, its description, and the units of the quota in one unit of the metric.
_USES: Final = {
    QuotaName.PRODUCER_BYTE_RATE: ("produce_bytes", "Bytes of Produce requests", 1.0),
    QuotaName.CONSUMER_BYTE_RATE: ("fetch_bytes", "Bytes of records in Fetch responses", 1.0),
    QuotaName.REQUEST_PERCENTAGE: ("request_seconds", "Seconds of the broker's work", 100.0),
    QuotaName.CONTROLLER_MUTATION_RATE: ("mutations", "Partitions created and deleted", 1.0),
}
_THROTTLES: Final = {
    QuotaName.PRODUCER_BYTE_RATE: "produce",
    QuotaName.CONSUMER_BYTE_RATE: "fetch",
    QuotaName.REQUEST_PERCENTAGE: "request",
    QuotaName.CONTROLLER_MUTATION_RATE: "controller_mutation",
}


def show_quotas(metrics: Metrics, limiter: Limiter, labels_max: int) -> None:
    """Add the metrics of all quotas of clients."""
    metrics.add_families(partial(_families, limiter, LabelBudget(labels_max)))
    metrics.add_gauge("quota_clients", "Clients whose quotas are tracked.", lambda: len(limiter))


def _families(limiter: Limiter, budget: LabelBudget) -> Iterator[Family]:
    meters = {meter: _has_row(meter.scope, budget) for meter in limiter.meters()}
    budget.end_round()
    for quota, (name, what, unit) in _USES.items():
        own = {meter: has_row for meter, has_row in meters.items() if meter.quota is quota}
        yield Family(
            f"millstream_client_{name}_total",
            "counter",
            f"{what} of clients with the quota {quota}.",
            _LABELS,
            _rows(own, {meter: meter.used / unit for meter in own}),
        )
        yield Family(
            f"millstream_client_{_THROTTLES[quota]}_throttle_seconds_total",
            "counter",
            f"Seconds for which clients were throttled by the quota {quota}.",
            _LABELS,
            _rows(own, {meter: meter.throttle_s for meter in own}),
        )


def _rows(
    meters: Mapping[Meter, bool], values: Mapping[Meter, float]
) -> list[tuple[LabelValues, Value]]:
    rows: list[tuple[LabelValues, Value]] = []
    for meter, has_row in meters.items():
        if has_row:
            user, client_id = meter.scope
            rows.append(((user or "", client_id or ""), values[meter]))
    if not all(meters.values()):
        folded = sum(values[meter] for meter, has_row in meters.items() if not has_row)
        rows.append(((OTHER, OTHER), folded))
    return rows


def _has_row(scope: Scope, budget: LabelBudget) -> bool:
    if not all(is_showable(name) for name in scope if name is not None):
        return False
    return budget.reserve(repr(scope))
