"""The input of the Streams application, and its expected output."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.topic_content import Message, NewMessage, read_messages, write_messages

INPUTS = ("orders", "users")
OUTPUTS = ("joined", "counts")
PARTITIONS = 4
WINDOW_MS = 5000
#: Milliseconds between two orders: a window has about 100 orders.
STEP_MS = 50
_REGIONS = ("north", "south", "west")
_USERS = 40
#: Users that no record describes: their orders join with nothing.
_STRANGERS = 2


@dataclass(slots=True)
class Feed:
    """Orders of users who may move between regions. `begin` is called before the application
    starts, so that the whole table exists: the application does not wait for later rows."""

    bootstrap: str
    chance: random.Random
    begun_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    orders: int = 0
    _regions: dict[int, str] = field(default_factory=dict)
    #: The expected records in `joined`, and the number of orders of each region and window.
    joined: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def begin(self, orders: int) -> None:
        """Send all users, `orders` orders, and moves of users in between."""
        users = [self._moved(user, -1) for user in range(_STRANGERS, _USERS)]
        ordered: list[NewMessage] = []
        for number in range(orders):
            if number % 7 == 3:
                # Half a step after the previous order: all timestamps differ.
                mover = self.chance.randrange(_STRANGERS, _USERS)
                users.append(self._moved(mover, self.orders - 0.5))
            ordered.append(self._ordered())
        write_messages(self.bootstrap, "users", users)
        write_messages(self.bootstrap, "orders", ordered)

    def go_on(self, orders: int) -> None:
        """Send more orders; no user moves."""
        write_messages(self.bootstrap, "orders", [self._ordered() for _ in range(orders)])

    def _moved(self, user: int, step: float) -> NewMessage:
        self._regions[user] = self.chance.choice(_REGIONS)
        return self._message(user, self._regions[user], step)

    def _ordered(self) -> NewMessage:
        number, user = self.orders, self.chance.randrange(_USERS)
        self.orders += 1
        message = self._message(user, f"order-{number}", number)
        if user in self._regions:
            region = self._regions[user]
            self.joined[f"user-{user}", f"order-{number} {region}"] += 1
            self.counts[f"{region} {message.timestamp - message.timestamp % WINDOW_MS}"] += 1
        return message

    def _message(self, user: int, value: str, step: float) -> NewMessage:
        timestamp = self.begun_ms + int(step * STEP_MS)
        return NewMessage(user % PARTITIONS, f"user-{user}".encode(), value.encode(), timestamp)

    def expected(self) -> int:
        """Return the expected number of records in both outputs."""
        return 2 * self.joined.total()

    def check(self) -> None:
        """Check that every order is in the input once, every join is in the output once, and
        every count grows by one from 1 to its final value."""
        orders = read_messages(self.bootstrap, ["orders"])
        found = Counter(text(message.value) for message in orders)
        assert found == Counter(f"order-{number}" for number in range(self.orders))
        self._check_outputs(read_messages(self.bootstrap, OUTPUTS))

    def _check_outputs(self, outputs: Sequence[Message]) -> None:
        joined = Counter(
            (text(message.key), text(message.value))
            for message in outputs
            if message.topic == "joined"
        )
        assert joined == self.joined, {
            "lost": self.joined - joined,
            "doubled or wrong": joined - self.joined,
        }
        steps: dict[str, list[int]] = {}
        for message in outputs:
            if message.topic == "counts":
                steps.setdefault(text(message.key), []).append(int(text(message.value)))
        assert steps == {key: list(range(1, end + 1)) for key, end in self.counts.items()}


def text(data: bytes | None) -> str:
    assert data is not None
    return data.decode()
