"""Publishes without transactions: a message's output is delivered before its offset is committed.

A crash between the two sends the output again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from millstream.client.error import CommitFailed, MillstreamError
from millstream.client.producer.delivery import Delivery
from millstream.client.record import OffsetAndMetadata, Partition
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.publish.publisher import (
    PublisherClients,
    RejectedLetters,
    is_final,
    may_be_of_other_record,
    require_final,
)

_logger = logging.getLogger(__name__)


class PlainPublisher:
    """The `Publisher` of workers that are not transactional."""

    def __init__(self, clients: PublisherClients, interval_s: float) -> None:
        self._clients = clients
        self._consumer = clients.consumer
        self._queue = clients.queue
        self._interval_s = interval_s
        self._sent: list[tuple[WorkItem, list[Delivery]]] = []
        #: Rejected, possibly because of another record in their batch.
        self._suspects: deque[WorkItem] = deque()
        self._rejected = RejectedLetters()
        self._offsets: dict[Partition, OffsetAndMetadata] = {}
        self._committed_at = time.monotonic()
        self._lock = threading.RLock()

    def step(self) -> None:
        with self._lock:
            self._send_pending()
            self._check_deliveries()
            if self._suspects and not self._sent:
                self._send_alone(self._suspects.popleft())
        if time.monotonic() - self._committed_at >= self._interval_s:
            self._commit()

    def flush(self, also: Iterable[Partition] = ()) -> bool:
        with self._lock:
            self._send_pending()
            self._wait()
            for _ in range(len(self._suspects)):
                if not self._sent:
                    self._send_alone(self._suspects.popleft())
                    self._wait()
            self._send(self._queue.take_unsent())
            self._wait()
        return self._commit(also)

    def commit_metadata(self, partitions: Iterable[Partition]) -> bool:
        return self._commit(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            for partition in set(partitions):
                self._offsets.pop(partition, None)

    def _send_pending(self) -> None:
        self._send(self._rejected.take_due())
        if not self._suspects:
            self._send(self._queue.take_unsent())

    def _send(self, items: list[WorkItem]) -> None:
        for item in items:
            try:
                deliveries = [self._clients.send(output) for output in item.outputs]
            except MillstreamError as error:
                self._reject(item, require_final(error))
            else:
                self._sent.append((item, deliveries))

    def _wait(self) -> None:
        """Wait for what was sent. Output that failed is sent again, and not waited for."""
        for _item, deliveries in self._sent:
            for delivery in deliveries:
                # `_check_deliveries` handles the result.
                delivery.exception()
        self._check_deliveries()

    def _check_deliveries(self) -> None:
        """Finish items whose output is delivered, and send failed output again.

        All output of a failed message is sent again, so parts of it may be in their topics twice,
        as after a crash.
        """
        waiting, finished, failed, rejected = [], [], [], []
        for item, deliveries in self._sent:
            if not all(delivery.done() for delivery in deliveries):
                waiting.append((item, deliveries))
                continue
            errors = [error for each in deliveries if (error := each.exception()) is not None]
            final = [error for error in errors if is_final(error)]
            if not errors or item.is_dropped:
                finished.append(item)
            elif final and may_be_of_other_record(final[0]):
                self._suspects.append(item)
            elif final:
                rejected.append((item, final[0]))
            else:
                _logger.warning("Sending the output of %r again: %s", item.record, errors[0])
                failed.append(item)
        self._sent = waiting
        self._queue.finish(finished)
        for item, error in rejected:
            self._reject(item, error)
        self._send(failed)

    def _send_alone(self, item: WorkItem) -> None:
        """Send the item's records one by one: a rejection now is caused by the record itself."""
        for output in item.outputs:
            try:
                error: MillstreamError | None = self._clients.send(output).exception()
            except MillstreamError as failure:
                error = failure
            if error is not None and not is_final(error):
                _logger.warning("Sending the output of %r again: %s", item.record, error)
                self._suspects.append(item)
                return
            if error is not None:
                self._reject(item, error)
                return
        self._queue.finish([item])

    def _reject(self, item: WorkItem, error: MillstreamError) -> None:
        if item.is_dropped:
            return
        if self._clients.reject(item, error):
            self._send([item])
        else:
            self._rejected.add(item)

    def _commit(self, also: Iterable[Partition] = ()) -> bool:
        self._committed_at = time.monotonic()
        with self._lock:
            for partition, commit in self._queue.take_commits(also).items():
                self._offsets[partition] = commit.offset
            offsets = dict(self._offsets)
        if not offsets:
            return True
        try:
            self._consumer.commit(offsets)
        except CommitFailed as error:
            _logger.warning("%s", error)
            return False
        with self._lock:
            for partition, offset in offsets.items():
                if self._offsets.get(partition) is offset:
                    del self._offsets[partition]
        return True
