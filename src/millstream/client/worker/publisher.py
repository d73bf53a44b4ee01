"""How a worker's outcomes reach the brokers: output, retries, dead letters and offsets.

`plain_publisher.py` and `transactional_publisher.py` implement `Publisher`. This module has what
they share.

A message whose output brokers reject for good becomes a dead letter. Brokers reject whole batches,
so the output is first sent once more with nothing else in its batch. A dead letter that is rejected
itself is sent again after a pause: there is no other topic for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from millstream.client.consumer.consumer import Consumer
from millstream.client.error import (
    BrokerError,
    ClosedError,
    MillstreamError,
    SerializationError,
    UsageError,
    is_of_batch,
    is_of_topic,
    is_rejection,
)
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.producer import Producer
from millstream.client.record import Partition
from millstream.client.worker.header import OutputRecord
from millstream.client.worker.job_queue import JobQueue
from millstream.client.worker.work_item import WorkItem

_logger = logging.getLogger(__name__)

#: The pause before a rejected dead letter is sent again.
DEAD_LETTER_RETRY_S: Final = 2.0

#: The result of sending a record: a delivery, or the error with which librdkafka rejected it.
SendResult: TypeAlias = Delivery | MillstreamError


class Publisher(Protocol):
    """Sends the output of finished messages and commits their offsets."""

    def step(self) -> None:
        """Send output that is pending, and commit if the interval has passed. Waits briefly."""

    def flush(self, also: Iterable[Partition] = ()) -> bool:
        """Send and commit everything that can be, with the metadata of `also` these partitions.

        Returns whether it is committed.
        """

    def commit_metadata(self, partitions: Iterable[Partition]) -> bool:
        """Commit the offset metadata of these partitions now. Returns whether it is committed."""

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions that another member has now."""


class PublisherClients:
    """The clients that both publishers use. `repair` creates the worker's own topics again."""

    def __init__(
        self, consumer: Consumer, producer: Producer, queue: JobQueue, repair: Callable[[], None]
    ) -> None:
        self.consumer = consumer
        self.producer = producer
        self.queue = queue
        self._repair = repair

    def send(self, output: OutputRecord) -> Delivery:
        """Send one record."""
        topic, key, value, headers, timestamp, partition = output
        return self.producer.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )

    def reject(self, item: WorkItem, error: MillstreamError) -> bool:
        """Replace rejected output by a dead letter. False if the dead letter itself is rejected."""
        if not item.is_dead:
            self.queue.reject(item, error)
            return True
        _logger.error(
            "The dead letter of %r is rejected, and the message cannot be finished before the "
            "cause is fixed: %s",
            item.record,
            error,
        )
        if isinstance(error, BrokerError) and is_of_topic(error.code):
            try:
                self._repair()
            except MillstreamError as failure:
                _logger.warning("The worker's topics were not created: %s", failure)
        return False


def failure_of(result: SendResult) -> MillstreamError | None:
    """Wait for the delivery report. None if the record was delivered."""
    return result.exception() if isinstance(result, Delivery) else result


def is_final(error: MillstreamError) -> bool:
    """Whether sending the record again cannot succeed."""
    if isinstance(error, BrokerError):
        return is_rejection(error.code)
    return isinstance(error, UsageError | SerializationError) and not isinstance(error, ClosedError)


def may_be_of_other_record(error: MillstreamError) -> bool:
    """Whether another record of the same batch may have caused the rejection."""
    return isinstance(error, BrokerError) and is_of_batch(error.code)


def require_final(error: MillstreamError) -> MillstreamError:
    """Return a final error; raise any other."""
    if not is_final(error):
        raise error
    return error
