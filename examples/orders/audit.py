"""Compares the outcome of the pipeline with the expected outcome, event by event."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from examples.orders import topics
from examples.orders.expected_outcome import ExpectedOutcome, Order, Sum, Window


@dataclass(frozen=True, slots=True)
class Outcome:
    """The content of the pipeline's tables and topics."""

    orders: list[Order]
    late: list[str]
    letters: list[bytes]
    #: The windows of the table, and of the topic.
    revenue: dict[Window, Sum]
    revenue_topic: dict[Window, Sum]
    #: The number of repeated windows in the topic.
    repeated: int


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the comparison: expected and found counts, and whether all events are equal."""

    name: str
    expected: int
    found: int
    agrees: bool


def collect(spark: Any, servers: str) -> Outcome:
    """Read the tables and topics of the pipeline."""
    orders = spark.sql(
        "SELECT order_id, customer, amount_cents, unix_millis(event_time), country, tier"
        " FROM orders"
    ).collect()
    late = spark.sql("SELECT order_id FROM late_orders").collect()
    windows = spark.sql(
        "SELECT unix_millis(window_start), country, orders, revenue_cents FROM revenue"
    ).collect()
    sent = [_window(key, value) for key, value in topics.values(servers, "revenue")]
    return Outcome(
        orders=[Order(*each) for each in orders],
        late=[each[0] for each in late],
        letters=[value or b"" for _, value in topics.values(servers, "orders.dlq")],
        revenue={Window(*each[:2]): Sum(*each[2:]) for each in windows},
        revenue_topic=dict(sent),
        repeated=len(sent) - len(dict(sent)),
    )


def account(expected: ExpectedOutcome, outcome: Outcome) -> list[Line]:
    """Compare each kind of event and the windows of the revenue."""
    accepted = Counter(expected.accepted.values())
    kept = len(outcome.orders) + len(outcome.late) + len(outcome.letters)
    windows = expected.windows()
    duplicates = expected.sent - kept
    return [
        _line("accepted, once each", accepted, Counter(outcome.orders)),
        _line("too late", Counter(expected.late), Counter(outcome.late)),
        _line("malformed, as dead letters", Counter(expected.malformed), Counter(outcome.letters)),
        Line(
            "duplicates dropped", expected.duplicates, duplicates, expected.duplicates == duplicates
        ),
        Line(
            "windows in the table", len(windows), len(outcome.revenue), windows == outcome.revenue
        ),
        Line(
            "windows in the topic",
            len(windows),
            len(outcome.revenue_topic) + outcome.repeated,
            windows == outcome.revenue_topic and not outcome.repeated,
        ),
    ]


def _line(name: str, expected: Counter[Any], found: Counter[Any]) -> Line:
    return Line(name, expected.total(), found.total(), expected == found)


def _window(key: bytes | None, value: bytes | None) -> tuple[Window, Sum]:
    found = json.loads(value or b"")
    return (
        Window(found["start_ms"], (key or b"").decode()),
        Sum(found["orders"], found["revenue_cents"]),
    )
