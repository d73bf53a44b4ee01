"""How a worker's outcomes reach the brokers: output, retries, dead letters and offsets.

`plain_publisher.py` and `transactional_publisher.py` implement `Publisher`. This module has what
they share.

A message whose output brokers reject for good becomes a dead letter. Brokers reject whole batches,
so the output is first sent once more with nothing else in its batch. A dead letter that is rejected
itself is sent again after a pause: there is no other topic for it. Its message stays unfinished;
all other messages continue.
"""

from __future__ import annotations

import logging
import time
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
from millstream.client.worker.message.header import OutputRecord
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.queue.job_queue import JobQueue

_logger = logging.getLogger(__name__)

#: The pause before a rejected dead letter is sent again. It doubles with each rejection.
_RETRY_S: Final = 2.0
_RETRY_S_MAX: Final = 300.0

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


class RejectedLetters:
    """Messages whose dead letter was rejected, each with the time to send it again."""

    def __init__(self) -> None:
        self._due: list[tuple[float, WorkItem]] = []
        self._counts: dict[WorkItem, int] = {}

    def add(self, item: WorkItem) -> None:
        """Plan the next attempt to send the letter."""
        count = self._counts[item] = self._counts.get(item, 0) + 1
        pause_s = min(_RETRY_S_MAX, _RETRY_S * 2.0 ** min(count - 1, 30))
        self._due.append((time.monotonic() + pause_s, item))

    def take_due(self) -> list[WorkItem]:
        """Return the messages whose letter is to be sent now."""
        if not self._due:
            return []
        now = time.monotonic()
        due = [item for when, item in self._due if when <= now and not item.is_dropped]
        self._due = [each for each in self._due if each[0] > now and not each[1].is_dropped]
        waiting = {item for _, item in self._due}.union(due)
        self._counts = {item: count for item, count in self._counts.items() if item in waiting}
        return due


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
