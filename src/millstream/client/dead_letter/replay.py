"""Sending dead letters again, each once however often the replay is killed.

A batch of letters and the ledger's record of them are one transaction. All replays of a dead-letter
topic share a transactional id: a new one ends what a killed one has left open, and fences one that
still runs, before it reads the ledger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from millstream.client.dead_letter.ledger import Ledger, ledger_topic
from millstream.client.dead_letter.letter import DeadLetter, Selection
from millstream.client.dead_letter.shelf import Shelf
from millstream.client.error import ClientError, OutcomeUnknown, TransactionAborted
from millstream.client.producer.producer import Producer
from millstream.client.producer.transaction import TIMEOUT_S, State, TransactionDriver

_BATCH: Final = 500
_TRIES: Final = 10
_TRANSACTION_S_MAX: Final = 30.0
_MESSAGE_BYTES_MAX: Final = 1_000_000_000


@dataclass(slots=True)
class Outcome:
    """`already` were chosen as well, but had been replayed before."""

    replayed: int = 0
    already: int = 0


class Replay:
    """Of the letters chosen, to the topics they came from, or all to the topic `to`.

    `rate` is letters a second. `again` also takes those that were replayed before.
    """

    def __init__(
        self,
        shelf: Shelf,
        selection: Selection,
        *,
        to: str | None = None,
        rate: float | None = None,
        again: bool = False,
        on_progress: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._shelf = shelf
        self._selection = selection
        self._to = to
        self._rate = rate
        self._again = again
        self._on_progress = on_progress
        self._stopping = threading.Event()
        self.outcome = Outcome()

    def stop(self) -> None:
        """End after the present batch."""
        self._stopping.set()

    def plan(self) -> Iterator[tuple[DeadLetter, str]]:
        """What `run` would do: the letters, each with the topic it would go to."""
        return self._chosen(self._shelf.ledger())

    def run(self) -> Outcome:
        self._shelf.make_ledger()
        properties = dict(self._shelf.properties)
        servers = properties.pop("bootstrap.servers")
        producer = Producer(
            servers,
            transactional_id=f"millstream-replay-{self._shelf.topic}",
            transaction_timeout_s=_TRANSACTION_S_MAX,
            # How large a letter may be is for its topic to say.
            config={"message.max.bytes": _MESSAGE_BYTES_MAX} | properties,
        )
        driver = producer.transactions
        assert driver is not None
        with producer:
            # Before the ledger is read: what a killed replay left open has ended then.
            driver.begin()
            driver.abort()
            ledger = self._shelf.ledger()
            batch: list[tuple[DeadLetter, str]] = []
            size = _BATCH if self._rate is None else max(1, min(_BATCH, int(self._rate)))
            start = time.monotonic()
            for chosen in self._chosen(ledger):
                batch.append(chosen)
                if len(batch) == size:
                    self._send(producer, driver, ledger, batch)
                    batch = []
                    if self._is_over(start):
                        return self.outcome
            if batch:
                self._send(producer, driver, ledger, batch)
        return self.outcome

    def _chosen(self, ledger: Ledger) -> Iterator[tuple[DeadLetter, str]]:
        for letter in self._shelf.letters():
            if not self._selection.has(letter):
                continue
            if letter.place in ledger and not self._again:
                self.outcome.already += 1
                continue
            yield letter, self._to or letter.target(self._shelf.topic)

    def _is_over(self, start: float) -> bool:
        """Wait as the rate says; whether to stop."""
        if self._rate is None:
            return self._stopping.is_set()
        due = start + self.outcome.replayed / self._rate
        return self._stopping.wait(max(0.0, due - time.monotonic()))

    def _send(
        self,
        producer: Producer,
        driver: TransactionDriver,
        ledger: Ledger,
        batch: list[tuple[DeadLetter, str]],
    ) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._transact(producer, driver, ledger, batch)
                break
            except TransactionAborted:
                if not tries_left:
                    raise
        ledger.add(letter.place for letter, _ in batch)
        self.outcome.replayed += len(batch)
        if self._on_progress is not None:
            self._on_progress(self.outcome)

    def _transact(
        self,
        producer: Producer,
        driver: TransactionDriver,
        ledger: Ledger,
        batch: list[tuple[DeadLetter, str]],
    ) -> None:
        driver.begin()
        try:
            for letter, target in batch:
                topic, key, value, headers, *_ = letter.again(target, self._shelf.topic)
                producer.send(topic, key, value, headers=headers)
            for record in ledger.records(letter.place for letter, _ in batch):
                producer.send(ledger_topic(self._shelf.topic), None, record)
        except ClientError:
            if driver.state is State.OPEN:
                driver.abort()
            raise
        _commit(driver)


def _commit(driver: TransactionDriver) -> None:
    """Until it is known what became of it: only then can the batch be sent again, or the next."""
    for tries_left in reversed(range(_TRIES)):
        try:
            driver.commit(TIMEOUT_S)
        except OutcomeUnknown:
            if not tries_left:
                raise
        else:
            return
