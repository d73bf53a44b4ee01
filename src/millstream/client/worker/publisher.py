"""How outcomes reach the brokers: records to retry and dead-letter topics, output, and offsets.

`plain_mover.py` and `transaction_mover.py` do it; this is what they share.

A message whose output the brokers reject for good becomes a dead letter. Brokers reject batches: so
before that, the output is sent once more, with nothing else in its batch. A dead letter that is
rejected itself is sent again after a while, because there is no other place for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from millstream.client.consumer.consumer import Consumer
from millstream.client.error import (
    BrokerError,
    ClientError,
    ClosedError,
    SerializationError,
    UsageError,
    is_of_batch,
    is_of_topic,
    is_rejection,
)
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.producer import Producer
from millstream.client.record import Partition
from millstream.client.worker.header import Output
from millstream.client.worker.in_flight import Entry
from millstream.client.worker.job_queue import Desk

LOGGER: Final = logging.getLogger("millstream.client.worker")
#: Before a dead letter that was rejected is sent again.
LETTER_REST_S: Final = 2.0


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


#: What became of a record: a delivery, or the error with which it was not taken at all.
Sent = Delivery | ClientError


def failure_of(sent: Sent) -> ClientError | None:
    """Wait for the brokers; None if the record was delivered."""
    return sent.exception() if isinstance(sent, Delivery) else sent


def is_final(error: ClientError) -> bool:
    """Whether sending it again would not help."""
    if isinstance(error, BrokerError):
        return is_rejection(error.code)
    return isinstance(error, UsageError | SerializationError) and not isinstance(error, ClosedError)


def shares_blame(error: ClientError) -> bool:
    """Whether another record of the same batch may be to blame."""
    return isinstance(error, BrokerError) and is_of_batch(error.code)


def checked(error: ClientError) -> ClientError:
    """The error, if it is final; any other is raised."""
    if not is_final(error):
        raise error
    return error
