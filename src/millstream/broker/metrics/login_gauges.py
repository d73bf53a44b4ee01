"""The counts of logins, by listener."""

from __future__ import annotations

from collections import Counter
from functools import partial

from millstream.broker.login.authentication import Authentication
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.broker.metrics.exposition import LabelValues, Value


def show_logins(metrics: Metrics, authentication: Authentication) -> None:
    """Add the totals of logins. Every listener with SASL has a row from the start."""
    listeners = tuple(authentication.listeners)

    def rows(counts: Counter[str]) -> list[tuple[LabelValues, Value]]:
        return [((listener,), counts[listener]) for listener in listeners]

    counters = authentication.counters
    for name, description, counts in (
        ("successful_authentication", "Logins that succeeded.", counters.succeeded),
        ("failed_authentication", "Logins that failed.", counters.failed),
        ("successful_reauthentication", "Renewals of logins that succeeded.", counters.renewed),
        ("failed_reauthentication", "Renewals of logins that failed.", counters.renewals_failed),
        (
            "expired_connections_killed",
            "Connections closed because their login had expired.",
            counters.expired,
        ),
    ):
        metrics.add_rows(
            f"{name}_total", "counter", description, ("listener",), partial(rows, counts)
        )
    metrics.add_gauge(
        "failed_authentication_addresses",
        "Addresses with failed logins that the broker remembers.",
        lambda: len(authentication.failures),
    )
