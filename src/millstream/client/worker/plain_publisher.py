"""Moves without transactions: what a message sends is delivered before its offset is committed. A
crash between the two repeats it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from millstream.client.error import ClientError, CommitFailed
from millstream.client.producer.delivery import Delivery
from millstream.client.record import NotedOffset, Partition
from millstream.client.worker.in_flight import Entry
from millstream.client.worker.publisher import (
    LETTER_REST_S,
    LOGGER,
    Clients,
    checked,
    is_final,
    shares_blame,
)


class PlainMover:
    """A mover (see `Mover`) for workers that are not transactional."""

    def __init__(self, clients: Clients, interval_s: float) -> None:
        self._clients = clients
        self._consumer = clients.consumer
        self._desk = clients.desk
        self._interval_s = interval_s
        self._sent: list[tuple[Entry, list[Delivery]]] = []
        #: Rejected, perhaps because of another record in their batch.
        self._suspects: deque[Entry] = deque()
        #: Dead letters that were rejected, and when to send them again.
        self._letters: list[tuple[float, Entry]] = []
        self._offsets: dict[Partition, NotedOffset] = {}
        self._committed_at = time.monotonic()
        self._lock = threading.RLock()

    def step(self) -> None:
        with self._lock:
            self._send_all()
            self._look()
            if self._suspects and not self._sent:
                self._send_alone(self._suspects.popleft())
        if time.monotonic() - self._committed_at >= self._interval_s:
            self._commit()

    def settle(self, also: Iterable[Partition] = ()) -> bool:
        with self._lock:
            self._send_all()
            self._wait()
            for _ in range(len(self._suspects)):
                if not self._sent:
                    self._send_alone(self._suspects.popleft())
                    self._wait()
            self._send(self._desk.take_moves())
            self._wait()
        return self._commit(also)

    def note(self, partitions: Iterable[Partition]) -> bool:
        return self._commit(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        gone = set(partitions)
        with self._lock:
            for partition in gone:
                self._offsets.pop(partition, None)

    def _send_all(self) -> None:
        now = time.monotonic()
        due = [entry for when, entry in self._letters if when <= now]
        self._letters = [each for each in self._letters if each[0] > now]
        self._send(due)
        if not self._suspects:
            self._send(self._desk.take_moves())

    def _send(self, entries: list[Entry]) -> None:
        for entry in entries:
            try:
                deliveries = [self._clients.send(output) for output in entry.outputs]
            except ClientError as error:
                self._reject(entry, checked(error))
            else:
                self._sent.append((entry, deliveries))

    def _wait(self) -> None:
        """Wait for what was sent; what failed is sent again, and not waited for."""
        for _entry, deliveries in self._sent:
            for delivery in deliveries:
                # `_look` says what follows.
                delivery.exception()
        self._look()

    def _look(self) -> None:
        """Finish what is delivered; what failed is sent again: the whole message's output is, so
        some of it may be there twice, as after a crash."""
        waiting, finished, failed, rejected = [], [], [], []
        for entry, deliveries in self._sent:
            if not all(delivery.done() for delivery in deliveries):
                waiting.append((entry, deliveries))
                continue
            errors = [error for each in deliveries if (error := each.exception()) is not None]
            final = [error for error in errors if is_final(error)]
            if not errors or entry.is_gone:
                finished.append(entry)
            elif final and shares_blame(final[0]):
                self._suspects.append(entry)
            elif final:
                rejected.append((entry, final[0]))
            else:
                LOGGER.warning("%r: what it sends is sent again: %s", entry.record, errors[0])
                failed.append(entry)
        self._sent = waiting
        self._desk.finish(finished)
        for entry, error in rejected:
            self._reject(entry, error)
        self._send(failed)

    def _send_alone(self, entry: Entry) -> None:
        """Send its output one by one: what is rejected now is to blame itself."""
        for output in entry.outputs:
            try:
                error: ClientError | None = self._clients.send(output).exception()
            except ClientError as failure:
                error = failure
            if error is not None and not is_final(error):
                LOGGER.warning("%r: what it sends is sent again: %s", entry.record, error)
                self._suspects.append(entry)
                return
            if error is not None:
                self._reject(entry, error)
                return
        self._desk.finish([entry])

    def _reject(self, entry: Entry, error: ClientError) -> None:
        if entry.is_gone:
            return
        if self._clients.reject(entry, error):
            self._send([entry])
        else:
            self._letters.append((time.monotonic() + LETTER_REST_S, entry))

    def _commit(self, also: Iterable[Partition] = ()) -> bool:
        self._committed_at = time.monotonic()
        with self._lock:
            for partition, finished in self._desk.take_finished(also).items():
                self._offsets[partition] = finished.offset
            offsets = dict(self._offsets)
        if not offsets:
            return True
        try:
            self._consumer.commit(offsets)
        except CommitFailed as error:
            LOGGER.warning("%s", error)
            return False
        with self._lock:
            for partition, offset in offsets.items():
                if self._offsets.get(partition) is offset:
                    del self._offsets[partition]
        return True
