"""Publishes in transactions: finished messages, their output and their offsets commit together.

A batch whose transaction was aborted is retried as it is, without the partitions that were revoked
and with dead letters instead of rejected output. A message whose dead letter is rejected leaves the
batch and is unfinished again: the others do not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from millstream.client.error import MillstreamError, OutcomeUnknown, TimedOut, TransactionAborted
from millstream.client.producer.delivery import Delivery
from millstream.client.producer.transaction import TIMEOUT_S, State
from millstream.client.record import Partition
from millstream.client.worker.message.work_item import WorkItem
from millstream.client.worker.publish.publisher import (
    PublisherClients,
    RejectedLetters,
    SendResult,
    failure_of,
    is_final,
    may_be_of_other_record,
    require_final,
)
from millstream.client.worker.queue.job_queue import PartitionCommit
from millstream.client.worker.queue.offset_metadata import OffsetMetadata

_logger = logging.getLogger(__name__)

#: How long to wait for a transaction's records before their topics are looked up.
_DELIVERY_S: Final = 2.0


class TransactionalPublisher:
    """The `Publisher` of transactional workers.

    The lock is held for a whole transaction and acquired after the consumer's: no partition is
    revoked while a transaction has its offsets.
    """

    def __init__(self, clients: PublisherClients, interval_s: float) -> None:
        driver = clients.producer.transactions
        assert driver is not None
        self._driver = driver
        self._clients = clients
        self._consumer = clients.consumer
        self._queue = clients.queue
        self._interval_s = interval_s
        self._batch: dict[Partition, list[PartitionCommit]] = {}
        #: Rejected, possibly because of another record in their batch.
        self._suspects: dict[WorkItem, None] = {}
        self._committed_at = time.monotonic()
        self._rejected = RejectedLetters()
        self._lock = threading.RLock()

    def step(self) -> None:
        if time.monotonic() - self._committed_at >= self._interval_s:
            self.flush()

    def flush(self, also: Iterable[Partition] = ()) -> bool:
        metadata = self._consumer.group_metadata()
        with self._lock:
            self._committed_at = time.monotonic()
            try:
                if self._driver.state is State.UNKNOWN:
                    self._driver.commit(TIMEOUT_S)
                    self._batch.clear()
                self._queue.finish_kept(self._rejected.take_due())
                self._take_commits(also)
                while self._batch and not self._transact(metadata):
                    pass
            except TransactionAborted as error:
                _logger.warning("The transaction is retried: %s", error)
            except OutcomeUnknown as error:
                _logger.warning("%s", error)
            return not self._batch

    def commit_metadata(self, partitions: Iterable[Partition]) -> bool:
        return self.flush(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                self._batch.pop(partition, None)

    def _take_commits(self, also: Iterable[Partition] = ()) -> None:
        for partition, commit in self._queue.take_commits(also).items():
            self._batch.setdefault(partition, []).append(commit)

    def _transact(self, metadata: Any) -> bool:
        """Run one transaction. False if it was aborted and has other output to send now."""
        sent: list[tuple[WorkItem, SendResult]] = []
        self._driver.begin()
        try:
            for item in self._items():
                self._send(item, sent)
            offsets = {partition: parts[-1].offset for partition, parts in self._batch.items()}
            self._driver.add_offsets(offsets, metadata)
            self._wait(sent)
            self._driver.commit(TIMEOUT_S)
        except MillstreamError as error:
            if self._driver.state is State.OPEN:
                self._driver.abort()
            if self._driver.state is not State.ABORTED:
                raise
            if self._replace_rejected(sent):
                return False
            raise TransactionAborted(str(error)) from error
        self._batch.clear()
        self._suspects.clear()
        return True

    def _items(self) -> Iterator[WorkItem]:
        commits = (commit for commits in self._batch.values() for commit in commits)
        return (item for commit in commits for item in commit.items)

    def _send(self, item: WorkItem, sent: list[tuple[WorkItem, SendResult]]) -> None:
        is_suspect = item in self._suspects
        for output in item.outputs:
            if is_suspect:
                # Nothing else may be in the suspect's batch.
                for _item, before in sent:
                    failure_of(before)
            try:
                delivery = self._clients.send(output)
            except MillstreamError as error:
                sent.append((item, require_final(error)))
                raise
            sent.append((item, delivery))
            if is_suspect and (failure := delivery.exception()) is not None:
                raise failure

    def _wait(self, sent: list[tuple[WorkItem, SendResult]]) -> None:
        """Wait for the records for `_DELIVERY_S`, then look up the topics of those that are late.

        A late record may be for a topic that was deleted. librdkafka would ask the coordinator for
        it until the transaction is over.
        """
        deadline = time.monotonic() + _DELIVERY_S
        topics: dict[str, None] = {}
        for item, each in sent:
            try:
                if isinstance(each, Delivery):
                    each.exception(max(0.0, deadline - time.monotonic()))
            except TimedOut:
                topics |= dict.fromkeys(output.topic for output in item.outputs)
        for topic in topics:
            self._clients.producer.refresh(topic)

    def _replace_rejected(self, sent: list[tuple[WorkItem, SendResult]]) -> bool:
        """Prepare rejected items for the next transaction. Returns whether it differs from this."""
        has_changed = False
        seen: dict[WorkItem, None] = {}
        for item, each in sent:
            error = failure_of(each)
            if error is None or item in seen or not is_final(error):
                continue
            seen[item] = None
            is_of_batch = isinstance(each, Delivery) and may_be_of_other_record(error)
            if is_of_batch and item not in self._suspects:
                self._suspects[item] = None
                has_changed = True
            else:
                has_changed = True
                if not self._clients.reject(item, error):
                    self._withhold(item)
        return has_changed

    def _withhold(self, item: WorkItem) -> None:
        """Leave a message whose dead letter is rejected out of the transaction, and its offset too.

        The metadata of the offset then names the message as unfinished.
        """
        commits = self._batch[item.partition]
        self._suspects.pop(item, None)
        self._remove([item], commits)
        self._rejected.add(item)
        self._take_commits({item.partition})
        offset = commits[-1].offset
        end = max(int(offset), OffsetMetadata.of(offset).end)
        # The metadata has no room for these any more: they wait for a later transaction.
        beyond = [each for commit in commits for each in commit.items if each.offset >= end]
        self._remove(beyond, commits)
        self._queue.finish_kept(beyond)

    def _remove(self, items: list[WorkItem], commits: list[PartitionCommit]) -> None:
        """Take items out of the batch, and make them unfinished."""
        for item in items:
            for commit in commits:
                if item in commit.items:
                    commit.items.remove(item)
            self._queue.withhold(item)
