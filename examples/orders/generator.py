"""Generates the orders of a shop, the same for the same seed.

A few customers place most orders. Most events arrive a little late, some much too late, some twice
(a client that retried), and some are malformed. Time is simulated: a round is half an hour, and the
timestamp of each message is its arrival time.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

#: 2026-03-02, 09:00 UTC.
OPENING_MS = 1_772_442_000_000
ROUND_MS = 30 * 60_000
#: An event that arrives this long after it happened is late.
LATENESS_MS_MAX = 10 * 60_000

COUNTRIES = ("DE", "FR", "IT", "NL", "PL")
TIERS = ("basic", "plus", "gold")
_PRICES = {"espresso": 249, "filter": 319, "grinder": 8_900, "kettle": 4_450, "beans": 1_295}


class Message(NamedTuple):
    """A record for a topic."""

    key: bytes
    value: bytes
    timestamp_ms: int


@dataclass(frozen=True)
class Recipe:
    """The number of events, and the shares of faulty ones."""

    seed: int = 1
    rounds: int = 3
    events: int = 20_000
    customers: int = 400
    duplicates: float = 0.03
    malformed: float = 0.02
    late: float = 0.02

    def events_of(self, number: int) -> int:
        """Return the number of events in a round. Rounds differ by one at most."""
        return self.events * (number + 1) // self.rounds - self.events * number // self.rounds


class Shop:
    """Generates the events of one recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._random = random.Random(recipe.seed)
        self._orders = 0
        #: Messages that may be duplicated, also in the next round.
        self._recent: deque[Message] = deque(maxlen=200)
        ranks = range(1, recipe.customers + 1)
        self._names = [f"c{rank:05}" for rank in ranks]
        # The first customer orders about a hundred times as often as the hundredth.
        self._weights = [1 / rank for rank in ranks]

    def customers(self, number: int) -> list[Message]:
        """Return the customers before round `number`: first all, then those with a new tier."""
        chosen = self._names if not number else self._random.sample(self._names, 20)
        return [self._customer(name, number) for name in chosen]

    def round(self, number: int) -> list[Message]:
        """Return the events of a round by arrival time."""
        start_ms = OPENING_MS + number * ROUND_MS
        arrivals = sorted(
            start_ms + self._random.randrange(ROUND_MS)
            for _ in range(self._recipe.events_of(number))
        )
        return [self._event(arrival_ms) for arrival_ms in arrivals]

    def _customer(self, name: str, number: int) -> Message:
        index = self._names.index(name)
        value = {
            "country": COUNTRIES[index % len(COUNTRIES)],
            "tier": TIERS[min(number + index % 2, len(TIERS) - 1)],
        }
        return Message(name.encode(), _json(value), OPENING_MS + number * ROUND_MS)

    def _event(self, arrival_ms: int) -> Message:
        chance = self._random.random()
        recipe = self._recipe
        if chance < recipe.duplicates and self._recent:
            return self._random.choice(self._recent)._replace(timestamp_ms=arrival_ms)
        chance -= recipe.duplicates
        order = self._order(arrival_ms, is_late=0 <= chance < recipe.late)
        chance -= recipe.late
        value = self._broken(order) if 0 <= chance < recipe.malformed else _json(order)
        self._recent.append(Message(order["customer"].encode(), value, arrival_ms))
        return self._recent[-1]

    def _order(self, arrival_ms: int, *, is_late: bool) -> dict[str, Any]:
        self._orders += 1
        item = self._random.choice(list(_PRICES))
        count = self._random.choices((1, 2, 3, 10), (70, 20, 8, 2))[0]
        delay_ms = self._delay_ms(is_late)
        return {
            "order_id": f"o{self._orders:08}",
            "customer": self._random.choices(self._names, self._weights)[0],
            "item": item,
            "count": count,
            "amount_cents": count * _PRICES[item],
            "event_time_ms": arrival_ms - delay_ms,
        }

    def _delay_ms(self, is_late: bool) -> int:
        if is_late:
            return self._random.randint(LATENESS_MS_MAX, 6 * LATENESS_MS_MAX)
        # Most events arrive within seconds, a few within minutes.
        slow = self._random.random() < 0.05
        return min(int(self._random.expovariate(1 / (120_000 if slow else 3_000))), 9 * 60_000)

    def _broken(self, order: dict[str, Any]) -> bytes:
        kind = self._random.randrange(5)
        if kind == 0:
            return _json(order)[:-10]
        if kind == 1:
            return b"\xff\xfe" + _json(order)
        if kind == 2:
            return _json(order | {"amount_cents": "a lot"})
        if kind == 3:
            return _json(order | {"amount_cents": -order["amount_cents"]})
        return _json({name: each for name, each in order.items() if name != "order_id"})


def rounds(recipe: Recipe) -> Iterator[tuple[list[Message], list[Message]]]:
    """Yield the messages for the topics customers and orders of each round."""
    shop = Shop(recipe)
    for number in range(recipe.rounds):
        yield shop.customers(number), shop.round(number)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
