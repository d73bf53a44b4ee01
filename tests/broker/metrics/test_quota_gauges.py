"""The metrics of quotas stay within the label budget."""

from __future__ import annotations

from millstream.broker.metrics.broker_metrics import OTHER, Metrics
from millstream.broker.metrics.quota_gauges import show_quotas
from millstream.metadata.security_record import QuotaEntity, Quotas
from millstream.model.map import Map
from millstream.security.quota.limiter import Limiter
from millstream.security.quota.rate import WindowOptions

BYTES = "millstream_client_produce_bytes_total"


def rows(metrics: Metrics, name: str) -> dict[tuple[str, ...], object]:
    (found,) = [family for family in metrics.families() if family.name == name]
    return dict(found.rows)


def used(labels_max: int, *users: str) -> Metrics:
    limiter = Limiter(WindowOptions(), WindowOptions())
    quotas: dict[QuotaEntity, Quotas] = {(("user", None),): Map({"producer_byte_rate": 10.0})}
    limiter.set_quotas(quotas)
    for user in users:
        produce = limiter.client(user, "app").produce
        assert produce is not None
        produce.charge(150, 0.0)
    metrics = Metrics()
    show_quotas(metrics, limiter, labels_max)
    return metrics


def test_each_user_has_a_row() -> None:
    metrics = used(10, "alice", "bob")
    assert rows(metrics, BYTES) == {("alice", ""): 150.0, ("bob", ""): 150.0}
    throttled = rows(metrics, "millstream_client_produce_throttle_seconds_total")
    assert throttled == {("alice", ""): 5.0, ("bob", ""): 5.0}
    assert rows(metrics, "millstream_client_fetch_bytes_total") == {}


def test_users_beyond_the_budget_share_a_row() -> None:
    metrics = used(1, "alice", "bob", "carol")
    assert rows(metrics, BYTES) == {("alice", ""): 150.0, (OTHER, OTHER): 300.0}


def test_names_that_are_not_safe_as_labels_share_the_row_of_others() -> None:
    metrics = used(10, "alice\0", "x" * 1000)
    assert rows(metrics, BYTES) == {(OTHER, OTHER): 300.0}
