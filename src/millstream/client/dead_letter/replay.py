"""Replay dead letters: send each back to its topic once, also when the replay is killed.

A batch of letters and the record of their replay are one transaction. All replays of a dead-letter
topic share a transactional id. So a new replay first ends the transaction of a killed one, fences a
replay that still runs, and only then reads which letters were replayed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.client.dead_letter.dead_letter_topic import DeadLetterTopic
from millstream.client.dead_letter.letter import DeadLetter, Selection
from millstream.client.dead_letter.replayed import ReplayedLetters, replay_topic
from millstream.client.error import MillstreamError, OutcomeUnknown, TransactionAborted
from millstream.client.producer.producer import Producer
from millstream.client.producer.transaction import TIMEOUT_S, State, TransactionDriver

_BATCH: Final = 500
_TRIES: Final = 10
_TRANSACTION_S_MAX: Final = 30.0
_MESSAGE_BYTES_MAX: Final = 1_000_000_000


@dataclass(slots=True)
class Outcome:
    """How many letters were replayed. `already` were selected too, but had been replayed before."""

    replayed: int = 0
    already: int = 0
    #: The number of replayed letters by target topic.
    targets: Counter[str] = field(default_factory=Counter, compare=False)


class Replay:
    """Replays the selected letters to the topics they came from, or all to the topic `to`.

    `rate` is in letters per second. `again` includes letters that were replayed before.
    """

    def __init__(
        self,
        dead_letters: DeadLetterTopic,
        selection: Selection,
        *,
        to: str | None = None,
        rate: float | None = None,
        again: bool = False,
    ) -> None:
        self._dead_letters = dead_letters
        self._selection = selection
        self._to = to
        self._rate = rate
        self._again = again
        self._stopping = threading.Event()
        self.outcome = Outcome()

    def stop(self) -> None:
        """Stop after the current batch."""
        self._stopping.set()

    def plan(self) -> Iterator[tuple[DeadLetter, str]]:
        """Yield the letters that `run` would replay, each with its target topic."""
        return self._chosen(self._dead_letters.replayed())

    def run(self) -> Outcome:
        """Replay the letters."""
        self._dead_letters.create_replay_topic()
        properties = dict(self._dead_letters.properties)
        servers = properties.pop("bootstrap.servers")
        producer = Producer(
            servers,
            transactional_id=f"millstream-replay-{self._dead_letters.topic}",
            transaction_timeout=_TRANSACTION_S_MAX,
            # The topic limits the size of a letter, not the client.
            config={"message.max.bytes": _MESSAGE_BYTES_MAX} | properties,
        )
        driver = producer.transactions
        assert driver is not None
        with producer:
            # End the transaction of a killed replay before the replayed letters are read.
            driver.begin()
            driver.abort()
            replayed = self._dead_letters.replayed()
            batch: list[tuple[DeadLetter, str]] = []
            size = _BATCH if self._rate is None else max(1, min(_BATCH, int(self._rate)))
            start = time.monotonic()
            for chosen in self._chosen(replayed):
                batch.append(chosen)
                if len(batch) == size:
                    self._send(producer, driver, replayed, batch)
                    batch = []
                    if self._is_over(start):
                        return self.outcome
            if batch:
                self._send(producer, driver, replayed, batch)
        return self.outcome

    def _chosen(self, replayed: ReplayedLetters) -> Iterator[tuple[DeadLetter, str]]:
        for letter in self._dead_letters.letters():
            if not self._selection.has(letter):
                continue
            if letter.id in replayed and not self._again:
                self.outcome.already += 1
                continue
            yield letter, self._to or letter.target(self._dead_letters.topic)

    def _is_over(self, start: float) -> bool:
        """Wait as the rate requires. Returns whether to stop."""
        if self._rate is None:
            return self._stopping.is_set()
        due = start + self.outcome.replayed / self._rate
        return self._stopping.wait(max(0.0, due - time.monotonic()))

    def _send(
        self,
        producer: Producer,
        driver: TransactionDriver,
        replayed: ReplayedLetters,
        batch: list[tuple[DeadLetter, str]],
    ) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._transact(producer, driver, replayed, batch)
                break
            except TransactionAborted:
                if not tries_left:
                    raise
        replayed.add(letter.id for letter, _ in batch)
        self.outcome.replayed += len(batch)
        self.outcome.targets.update(target for _, target in batch)

    def _transact(
        self,
        producer: Producer,
        driver: TransactionDriver,
        replayed: ReplayedLetters,
        batch: list[tuple[DeadLetter, str]],
    ) -> None:
        driver.begin()
        try:
            for letter, target in batch:
                topic, key, value, headers, *_ = letter.again(target, self._dead_letters.topic)
                producer.send(topic, value, key=key, headers=headers)
            for record in replayed.records(letter.id for letter, _ in batch):
                producer.send(replay_topic(self._dead_letters.topic), record)
        except MillstreamError:
            if driver.state is State.OPEN:
                driver.abort()
            raise
        _commit(driver)


def _commit(driver: TransactionDriver) -> None:
    """Commit until the outcome is known. Only then can the batch be retried."""
    for tries_left in reversed(range(_TRIES)):
        try:
            driver.commit(TIMEOUT_S)
        except OutcomeUnknown:
            if not tries_left:
                raise
        else:
            return
