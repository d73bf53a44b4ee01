"""Computes the expected outcome of the pipeline in plain Python, one message at a time.

It shares only the rules with the pipeline: a message is malformed, late, a duplicate of an accepted
message, or accepted. The four counts add up to the number of sent messages.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from examples.orders.generator import LATENESS_MS_MAX, Message

WINDOW_MS = 10 * 60_000


class Order(NamedTuple):
    """An order as in the pipeline's table."""

    order_id: str
    customer: str
    amount_cents: int
    event_time_ms: int
    country: str
    tier: str


class Window(NamedTuple):
    """Ten minutes of one country."""

    start_ms: int
    country: str


class Sum(NamedTuple):
    """The orders and the revenue of a window."""

    orders: int
    revenue_cents: int


@dataclass(slots=True)
class ExpectedOutcome:
    """The expected outcome of the rounds so far."""

    sent: int = 0
    accepted: dict[str, Order] = field(default_factory=dict)
    #: The ids of late orders. A duplicate of a late order is late too.
    late: list[str] = field(default_factory=list)
    malformed: list[bytes] = field(default_factory=list)
    duplicates: int = 0
    _customers: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, customers: Iterable[Message], orders: Iterable[Message]) -> None:
        """Add one round. Its orders are joined with the customers at its start."""
        for each in customers:
            self._customers[each.key.decode()] = json.loads(each.value)
        for message in orders:
            self.sent += 1
            self._add(message)

    def windows(self) -> dict[Window, Sum]:
        """Return the revenue of the windows that the watermark has closed."""
        newest_ms = max((each.event_time_ms for each in self.accepted.values()), default=0)
        watermark_ms = newest_ms - LATENESS_MS_MAX
        orders: dict[Window, list[Order]] = defaultdict(list)
        for each in self.accepted.values():
            start_ms = each.event_time_ms // WINDOW_MS * WINDOW_MS
            if start_ms + WINDOW_MS <= watermark_ms:
                orders[Window(start_ms, each.country)].append(each)
        return {
            window: Sum(len(members), sum(each.amount_cents for each in members))
            for window, members in orders.items()
        }

    def _add(self, message: Message) -> None:
        order = _parsed(message.value)
        if order is None:
            self.malformed.append(message.value)
        elif message.timestamp_ms - order["event_time_ms"] >= LATENESS_MS_MAX:
            self.late.append(order["order_id"])
        elif order["order_id"] in self.accepted:
            self.duplicates += 1
        else:
            self.accepted[order["order_id"]] = self._enriched(order)

    def _enriched(self, order: dict[str, Any]) -> Order:
        customer = self._customers[order["customer"]]
        known = {name: order[name] for name in Order._fields[:4]}
        return Order(**known, country=customer["country"], tier=customer["tier"])


def _parsed(value: bytes) -> dict[str, Any] | None:
    """Return the order, or None if the value is malformed."""
    try:
        order = json.loads(value.decode())
    except ValueError:
        return None
    if not isinstance(order.get("order_id"), str):
        return None
    amount = order.get("amount_cents")
    return order if isinstance(amount, int) and amount > 0 else None
