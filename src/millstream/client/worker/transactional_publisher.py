"""Moves in transactions: finished messages, what they send and their offsets are one transaction.

A batch whose transaction was aborted is tried again as it is, but without the partitions that have
gone, and with dead letters in place of output that was rejected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from millstream.client.error import ClientError, OutcomeUnknown, TimedOut, TransactionAborted
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.transaction import TIMEOUT_S, State
from millstream.client.record import Partition
from millstream.client.worker.in_flight import Entry
from millstream.client.worker.job_queue import Finished
from millstream.client.worker.publisher import (
    LETTER_REST_S,
    LOGGER,
    Clients,
    Sent,
    checked,
    failure_of,
    is_final,
    shares_blame,
)

#: How long records of a transaction are waited for before their topics are looked up.
_DELIVERY_S: Final = 2.0


class TransactionMover:
    """The lock is held for a whole transaction, and taken after the consumer's: partitions are not
    given away while a transaction has their offsets."""

    def __init__(self, clients: Clients, interval_s: float) -> None:
        driver = clients.producer.transactions
        assert driver is not None
        self._driver = driver
        self._clients = clients
        self._consumer = clients.consumer
        self._desk = clients.desk
        self._interval_s = interval_s
        self._batch: dict[Partition, list[Finished]] = {}
        #: Rejected, perhaps because of another record in their batch.
        self._suspects: dict[Entry, None] = {}
        self._committed_at = time.monotonic()
        #: After a dead letter was rejected.
        self._rests_until = 0.0
        self._lock = threading.RLock()

    def step(self) -> None:
        now = time.monotonic()
        if now - self._committed_at >= self._interval_s and now >= self._rests_until:
            self.settle()

    def settle(self, also: Iterable[Partition] = ()) -> bool:
        metadata = self._consumer.group_metadata()
        with self._lock:
            self._committed_at = time.monotonic()
            try:
                if self._driver.state is State.UNKNOWN:
                    self._driver.commit(TIMEOUT_S)
                    self._batch.clear()
                for partition, finished in self._desk.take_finished(also).items():
                    self._batch.setdefault(partition, []).append(finished)
                while self._batch and not self._transact(metadata):
                    pass
            except TransactionAborted as error:
                LOGGER.warning("The transaction is tried again: %s", error)
            except OutcomeUnknown as error:
                LOGGER.warning("%s", error)
            return not self._batch

    def note(self, partitions: Iterable[Partition]) -> bool:
        return self.settle(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                self._batch.pop(partition, None)

    def _transact(self, metadata: Any) -> bool:
        """One attempt; False if the next one is to be made at once, with other output."""
        sent: list[tuple[Entry, Sent]] = []
        self._driver.begin()
        try:
            for entry in self._entries():
                self._send(entry, sent)
            offsets = {partition: parts[-1].offset for partition, parts in self._batch.items()}
            self._driver.add_offsets(offsets, metadata)
            self._wait(sent)
            self._driver.commit(TIMEOUT_S)
        except ClientError as error:
            if self._driver.state is State.OPEN:
                self._driver.abort()
            if self._driver.state is not State.ABORTED:
                raise
            if self._has_changed(sent):
                return False
            raise TransactionAborted(str(error)) from error
        self._batch.clear()
        self._suspects.clear()
        return True

    def _entries(self) -> Iterator[Entry]:
        parts = (part for partition in self._batch.values() for part in partition)
        return (entry for part in parts for entry in part.entries)

    def _send(self, entry: Entry, sent: list[tuple[Entry, Sent]]) -> None:
        is_suspect = entry in self._suspects
        for output in entry.outputs:
            if is_suspect:
                # Nothing else is in its batch.
                for _entry, before in sent:
                    failure_of(before)
            try:
                delivery = self._clients.send(output)
            except ClientError as error:
                sent.append((entry, checked(error)))
                raise
            sent.append((entry, delivery))
            if is_suspect and (failure := delivery.exception()) is not None:
                raise failure

    def _wait(self, sent: list[tuple[Entry, Sent]]) -> None:
        """Wait for the records for a while. What takes longer may be for a topic that was deleted:
        librdkafka would ask the coordinator for it until the transaction is over."""
        deadline = time.monotonic() + _DELIVERY_S
        topics: dict[str, None] = {}
        for entry, each in sent:
            try:
                if isinstance(each, Delivery):
                    each.exception(max(0.0, deadline - time.monotonic()))
            except TimedOut:
                topics |= dict.fromkeys(output.topic for output in entry.outputs)
        for topic in topics:
            self._clients.producer.refresh(topic)

    def _has_changed(self, sent: list[tuple[Entry, Sent]]) -> bool:
        """Whether the next transaction finds out more, or sends a dead letter instead."""
        has_changed = False
        seen: dict[Entry, None] = {}
        for entry, each in sent:
            error = failure_of(each)
            if error is None or entry in seen or not is_final(error):
                continue
            seen[entry] = None
            if isinstance(each, Delivery) and shares_blame(error) and entry not in self._suspects:
                self._suspects[entry] = None
                has_changed = True
            elif self._clients.reject(entry, error):
                has_changed = True
            else:
                self._rests_until = time.monotonic() + LETTER_REST_S
        return has_changed
