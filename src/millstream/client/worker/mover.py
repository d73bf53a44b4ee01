"""How outcomes reach the brokers: records to retry and dead-letter topics, output, and offsets.

`PlainMover`: what a message sends is delivered before its offset is committed. A crash between the
two repeats it.

`TransactionMover`: finished messages, what they send and their offsets are one transaction. A batch
whose transaction was aborted is tried again as it is, without the partitions that have gone.

A message whose output the brokers reject for good becomes a dead letter. Brokers reject batches: so
before that, the output is sent once more, with nothing else in its batch. A dead letter that is
rejected itself is sent again after a while, because there is no other place for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from millstream.client.consumer import Consumer
from millstream.client.delivery import Delivery
from millstream.client.error import (
    BrokerError,
    ClientError,
    ClosedError,
    CommitFailed,
    OutcomeUnknown,
    SerializationError,
    TimedOut,
    TransactionAborted,
    UsageError,
    is_of_batch,
    is_of_topic,
    is_rejection,
)
from millstream.client.producer import Producer
from millstream.client.record import NotedOffset, Partition
from millstream.client.transaction import TIMEOUT_S, State
from millstream.client.worker.board import Entry
from millstream.client.worker.desk import Desk, Finished
from millstream.client.worker.letter import Output

LOGGER: Final = logging.getLogger("millstream.client.worker")
#: Before a dead letter that was rejected is sent again.
_LETTER_REST_S: Final = 2.0
#: How long records of a transaction are waited for before their topics are looked up.
_DELIVERY_S: Final = 2.0


class Mover(Protocol):
    def step(self) -> None:
        """Send what there is to send, and commit if it is time. Waits for little."""

    def settle(self, also: Iterable[Partition] = ()) -> bool:
        """Send and commit all that can be, now, with the notes of `also` these partitions.

        Returns whether it is committed.
        """

    def note(self, partitions: Iterable[Partition]) -> bool:
        """Commit the notes of these partitions now; whether they are committed."""

    def drop(self, partitions: Iterable[Partition]) -> None:
        """They are somebody else's."""


class Clients:
    """What both kinds of movers work with. `repair` creates the worker's own topics anew."""

    def __init__(
        self, consumer: Consumer, producer: Producer, desk: Desk, repair: Callable[[], None]
    ) -> None:
        self.consumer = consumer
        self.producer = producer
        self.desk = desk
        self._repair = repair

    def send(self, output: Output) -> Delivery:
        topic, key, value, headers, timestamp, partition = output
        return self.producer.send(
            topic, key, value, headers=headers, partition=partition, timestamp=timestamp
        )

    def reject(self, entry: Entry, error: ClientError) -> bool:
        """Have its dead letter sent instead; False if it was the dead letter that was rejected."""
        if not entry.is_dead:
            self.desk.reject(entry, error)
            return True
        LOGGER.error(
            "The dead letter of %r is rejected, and the message cannot be finished before that is "
            "mended: %s",
            entry.record,
            error,
        )
        if isinstance(error, BrokerError) and is_of_topic(error.code):
            try:
                self._repair()
            except ClientError as failure:
                LOGGER.warning("%s", failure)
        return False


class PlainMover:
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
            self._take()
        if time.monotonic() - self._committed_at >= self._interval_s:
            self._commit()

    def settle(self, also: Iterable[Partition] = ()) -> bool:
        with self._lock:
            self._send_all()
            while self._sent:
                self._wait()
                suspects, self._suspects = self._suspects, deque()
                for entry in suspects:
                    self._send_alone(entry)
                if not suspects:
                    break
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
                self._reject(entry, _checked(error))
            else:
                self._sent.append((entry, deliveries))

    def _wait(self) -> None:
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
            final = [error for error in errors if _is_final(error)]
            if not errors or entry.is_gone:
                finished.append(entry)
            elif final and _is_of_batch(final[0]):
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
            if error is not None and not _is_final(error):
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
            self._letters.append((time.monotonic() + _LETTER_REST_S, entry))

    def _take(self, also: Iterable[Partition] = ()) -> None:
        """Room for others is made before the commit."""
        for partition, finished in self._desk.take_finished(also).items():
            self._offsets[partition] = finished.offset

    def _commit(self, also: Iterable[Partition] = ()) -> bool:
        self._committed_at = time.monotonic()
        with self._lock:
            self._take(also)
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
                    _failure_of(before)
            try:
                delivery = self._clients.send(output)
            except ClientError as error:
                sent.append((entry, _checked(error)))
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
            error = _failure_of(each)
            if error is None or entry in seen or not _is_final(error):
                continue
            seen[entry] = None
            if isinstance(each, Delivery) and _is_of_batch(error) and entry not in self._suspects:
                self._suspects[entry] = None
                has_changed = True
            elif self._clients.reject(entry, error):
                has_changed = True
            else:
                self._rests_until = time.monotonic() + _LETTER_REST_S
        return has_changed


#: What became of a record: a delivery, or the error with which it was not taken at all.
Sent = Delivery | ClientError


def _failure_of(sent: Sent) -> ClientError | None:
    """Wait for the brokers; None if the record was delivered."""
    return sent.exception() if isinstance(sent, Delivery) else sent


def _is_final(error: ClientError) -> bool:
    """Whether sending it again would not help."""
    if isinstance(error, BrokerError):
        return is_rejection(error.code)
    return isinstance(error, UsageError | SerializationError) and not isinstance(error, ClosedError)


def _is_of_batch(error: ClientError) -> bool:
    return isinstance(error, BrokerError) and is_of_batch(error.code)


def _checked(error: ClientError) -> ClientError:
    """The error, if it is final; any other is raised."""
    if not _is_final(error):
        raise error
    return error
