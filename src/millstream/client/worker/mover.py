"""How outcomes reach the brokers: records to retry and dead-letter topics, output, and offsets.

`PlainMover`: what a message sends is delivered before its offset is committed. A crash between the
two repeats it.

`TransactionMover`: finished messages up to the lowest unfinished one, what they send and their
offsets are one transaction. What finished further ahead waits: committed without its offset, it
would be repeated after a crash. A batch whose transaction was aborted is tried again as it is,
without the partitions that have gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from millstream.client.consumer import Consumer
from millstream.client.delivery import Delivery
from millstream.client.error import ClientError, CommitFailed, OutcomeUnknown, TransactionAborted
from millstream.client.producer import Producer
from millstream.client.record import Partition
from millstream.client.transaction import TIMEOUT_S, State
from millstream.client.worker.board import Entry, Taken
from millstream.client.worker.desk import Desk
from millstream.client.worker.letter import Output

LOGGER: Final = logging.getLogger("millstream.client.worker")


class Mover(Protocol):
    def step(self) -> None:
        """Send what there is to send, and commit if it is time. Waits for little."""

    def settle(self) -> None:
        """Send and commit all that can be, now."""

    def drop(self, partitions: Iterable[Partition]) -> None:
        """They are somebody else's."""


class PlainMover:
    def __init__(
        self, consumer: Consumer, producer: Producer, desk: Desk, interval_s: float
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._desk = desk
        self._interval_s = interval_s
        self._sent: list[tuple[Entry, list[Delivery]]] = []
        self._offsets: dict[Partition, int] = {}
        self._committed_at = time.monotonic()
        self._lock = threading.RLock()

    def step(self) -> None:
        with self._lock:
            self._send(self._desk.take_moves())
            self._look()
            self._take()
        if time.monotonic() - self._committed_at >= self._interval_s:
            self._commit()

    def settle(self) -> None:
        with self._lock:
            self._send(self._desk.take_moves())
            for _entry, deliveries in self._sent:
                for delivery in deliveries:
                    # What failed is sent again by `_look`.
                    delivery.exception()
            self._look()
        self._commit()

    def drop(self, partitions: Iterable[Partition]) -> None:
        gone = set(partitions)
        with self._lock:
            for partition in gone:
                self._offsets.pop(partition, None)

    def _send(self, entries: list[Entry]) -> None:
        for entry in entries:
            deliveries = [_send(self._producer, output) for output in entry.outputs]
            self._sent.append((entry, deliveries))

    def _look(self) -> None:
        """Finish what is delivered; what failed is sent again: the whole message's output is, so
        some of it may be there twice, as after a crash."""
        waiting, finished, failed = [], [], []
        for entry, deliveries in self._sent:
            if not all(delivery.done() for delivery in deliveries):
                waiting.append((entry, deliveries))
                continue
            errors = [error for each in deliveries if (error := each.exception()) is not None]
            if errors and not entry.is_gone:
                LOGGER.warning("%r: what it sends is sent again: %s", entry.record, errors[0])
                failed.append(entry)
            else:
                finished.append(entry)
        self._sent = waiting
        self._desk.finish(finished)
        self._send(failed)

    def _take(self) -> None:
        """Room for others is made before the commit."""
        for partition, taken in self._desk.take_finished().items():
            self._offsets[partition] = taken.offset

    def _commit(self) -> None:
        self._committed_at = time.monotonic()
        with self._lock:
            self._take()
            offsets = dict(self._offsets)
        if not offsets:
            return
        try:
            self._consumer.commit(offsets)
        except CommitFailed as error:
            LOGGER.warning("%s", error)
            return
        with self._lock:
            for partition, offset in offsets.items():
                if self._offsets.get(partition) == offset:
                    del self._offsets[partition]


class TransactionMover:
    """The lock is held for a whole transaction, and taken after the consumer's: partitions are not
    given away while a transaction has their offsets."""

    def __init__(
        self, consumer: Consumer, producer: Producer, desk: Desk, interval_s: float
    ) -> None:
        driver = producer.transactions
        assert driver is not None
        self._driver = driver
        self._consumer = consumer
        self._producer = producer
        self._desk = desk
        self._interval_s = interval_s
        self._batch: dict[Partition, list[Taken]] = {}
        self._committed_at = time.monotonic()
        self._lock = threading.RLock()

    def step(self) -> None:
        if time.monotonic() - self._committed_at >= self._interval_s:
            self.settle()

    def settle(self) -> None:
        metadata = self._consumer.group_metadata()
        with self._lock:
            self._committed_at = time.monotonic()
            try:
                if self._driver.state is State.UNKNOWN:
                    self._driver.commit(TIMEOUT_S)
                    self._batch.clear()
                for partition, taken in self._desk.take_finished().items():
                    self._batch.setdefault(partition, []).append(taken)
                if self._batch:
                    self._transact(metadata)
            except TransactionAborted as error:
                LOGGER.warning("The transaction is tried again: %s", error)
            except OutcomeUnknown as error:
                LOGGER.warning("%s", error)

    def drop(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                self._batch.pop(partition, None)

    def _transact(self, metadata: Any) -> None:
        self._driver.begin()
        try:
            for entry in (each for parts in self._batch.values() for each in _entries(parts)):
                for output in entry.outputs:
                    _send(self._producer, output)
            offsets = {partition: parts[-1].offset for partition, parts in self._batch.items()}
            self._driver.add_offsets(offsets, metadata)
        except ClientError:
            if self._driver.state is State.OPEN:
                self._driver.abort()
            raise
        self._driver.commit(TIMEOUT_S)
        self._batch.clear()


def _send(producer: Producer, output: Output) -> Delivery:
    topic, key, value, headers, timestamp = output
    return producer.send(topic, key, value, headers=headers, timestamp=timestamp)


def _entries(parts: list[Taken]) -> Iterator[Entry]:
    return (entry for part in parts for entry in part.entries)
