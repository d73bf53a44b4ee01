"""One session of a worker: a consumer in the group, a producer, handlers, and the loop over them.

A session ends when the worker stops, or with an error after which only a new consumer knows what is
committed. The worker then starts another session.

Before the first messages of a partition are added, the session reads the metadata of the committed
offset and commits metadata with this worker's id. A worker that finds the id later knows that this
worker died. The id is removed when the partition is given up in order.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millstream.client.consumer.consumer import RECORDS_MAX, Consumer, load_ahead
from millstream.client.error import MillstreamError, UsageError
from millstream.client.producer.producer import Producer
from millstream.client.record import Partition, Record
from millstream.client.worker.cron.clock import CronClock
from millstream.client.worker.cron.tick_log import TopicTickLog
from millstream.client.worker.cron.ticks import cron_topic
from millstream.client.worker.handler.routes import Handler, Routes
from millstream.client.worker.handler.runner import runner_for
from millstream.client.worker.policy.policy import WorkerSettings
from millstream.client.worker.policy.rate_limit import RateLimit
from millstream.client.worker.publish.plain_publisher import PlainPublisher
from millstream.client.worker.publish.publisher import Publisher, PublisherClients
from millstream.client.worker.publish.transactional_publisher import TransactionalPublisher
from millstream.client.worker.queue.job_queue import JobQueue
from millstream.client.worker.queue.offset_metadata import OffsetMetadata
from millstream.client.worker.queue.outcome import Counts
from millstream.client.worker.queue.topic_queue import TopicQueues

_logger = logging.getLogger(__name__)

_POLL_S: Final = 0.05
#: The poll timeout while tracked messages start: the next one may have to be recorded soon.
_TRACKED_POLL_S: Final = 0.002
#: The assumed size of a message before any message was read.
_MESSAGE_BYTES_GUESS: Final = 64 * 1024
_MESSAGE_BYTES_MAX: Final = 1_000_000_000
#: Transactions are short: one that a killed worker left open blocks readers until it times out.
#: Records expire well before, while the transaction can still be aborted.
_TRANSACTION_S_MAX: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """What a worker gives to each of its sessions."""

    servers: str | Sequence[str] | None
    group: str
    topics: list[str]
    settings: WorkerSettings
    routes: Routes
    #: The handlers and middleware of `routes` as one function.
    handler: Handler
    counts: Counts
    #: The worker's id in offset metadata.
    owner: str
    is_stopping: Callable[[], bool]
    #: Creates the worker's own topics again.
    repair: Callable[[], None]


class WorkerSession:
    """Reads messages, runs handlers and publishes outcomes until the worker stops."""

    def __init__(self, config: SessionConfig) -> None:
        settings = config.settings
        self._settings = settings
        self._is_stopping = config.is_stopping
        self.queue = JobQueue(
            settings, config.group, config.counts, config.owner, config.is_stopping
        )
        queues = topic_queues(settings, config.routes.rate_limits(config.topics))
        if queues is not None:
            self.queue.start_by_topic(queues)
        #: The group has assigned partitions, or none because others have all.
        self.has_joined = False
        #: Partitions whose messages may be added.
        self._opened: set[Partition] = set()
        #: Opened partitions whose metadata does not name this worker yet.
        self._unmarked: set[Partition] = set()
        #: Whether the last turn committed metadata that tracked messages waited for.
        self._has_tracked = False
        self._message_bytes = float(_MESSAGE_BYTES_GUESS)
        self._paused: set[Partition] = set()
        #: Whether partitions were revoked since the last poll began.
        self._has_changed = False
        self._is_closing = False
        self._producer = Producer(config.servers, **self._producer_options(config.group))
        try:
            self._consumer = self._open_consumer(config)
        except BaseException:
            self._producer.close()
            raise
        make = TransactionalPublisher if settings.transactional else PlainPublisher
        clients = PublisherClients(self._consumer, self._producer, self.queue, config.repair)
        self._publisher: Publisher = make(clients, settings.interval_s)
        self._runner = runner_for(config.handler, self.queue, settings.concurrency)
        self._clock = self._cron_clock(config)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that the group assigned to this worker."""
        return self._consumer.assignment

    @property
    def is_full(self) -> bool:
        """Whether reading of a partition is paused because its window is full."""
        return bool(self._paused)

    def run(self) -> None:
        """Work until the worker stops, then finish running jobs, commit and leave the group."""
        self._runner.start()
        if self._clock is not None:
            self._clock.start()
        try:
            while not self._is_stopping():
                self._turn()
        except BaseException:
            self._abandon()
            raise
        self._drain()

    def _cron_clock(self, config: SessionConfig) -> CronClock | None:
        """Return the clock that sends the ticks of periodic jobs, if there are any."""
        if not config.routes.cron:
            return None
        topic = cron_topic(config.group)
        log = TopicTickLog(topic, config.servers, config.settings.admin_options)
        owned = Partition(topic, 0)
        return CronClock(config.routes.cron, log, lambda: owned in self._consumer.assignment)

    def _turn(self) -> None:
        self._has_changed = False
        wait_s = _TRACKED_POLL_S if self._has_tracked else _POLL_S
        records: Sequence[Record] = self._consumer.poll(self._poll_count(), timeout=wait_s)
        if records:
            self._open(records)
        self._mark()
        self.queue.add(self._assigned(records) if self._has_changed else records)
        self._runner.abandon(self.queue.tick())
        self._publisher.step()
        self._record_tracked()
        self._throttle()

    def _poll_count(self) -> int:
        """Return how many messages to poll, so that they fit into one partition's bytes."""
        share = self._settings.window_bytes / max(1, len(self._opened))
        return max(1, min(RECORDS_MAX, int(share / self._message_bytes)))

    def _open(self, records: Sequence[Record]) -> None:
        """Open the partitions among `records` that are new, with their committed metadata."""
        size = sum(len(record.raw_value or b"") for record in records) / len(records)
        self._message_bytes = max(1.0, size, self._message_bytes / 2)
        firsts: dict[Partition, int] = {}
        for record in records:
            firsts.setdefault(Partition(record.topic, record.partition), record.offset)
        new = {each: first for each, first in firsts.items() if each not in self._opened}
        if not new:
            return
        committed = self._consumer.committed()
        for partition, first in new.items():
            offset = committed.get(partition)
            if offset is None or offset > first:
                # Nothing was committed, or for a log that was truncated since.
                self.queue.open(partition, first, OffsetMetadata())
            else:
                self.queue.open(partition, offset, OffsetMetadata.of(offset))
        self._opened.update(new)
        self._unmarked.update(new)

    def _mark(self) -> None:
        """Commit metadata with this worker's id before a partition's first handler starts."""
        if self._unmarked and self._publisher.commit_metadata(set(self._unmarked)):
            self._unmarked.clear()

    def _record_tracked(self) -> None:
        """Commit the metadata that tracked messages wait for."""
        partitions = self.queue.plan_tracked()
        self._has_tracked = bool(partitions)
        if partitions:
            is_committed = self._publisher.commit_metadata(partitions)
            self.queue.tracked_recorded(is_committed=is_committed)

    def _assigned(self, records: Iterable[Record]) -> list[Record]:
        """Return the records without those of partitions that were revoked during the poll."""
        mine = self._consumer.assignment
        return [each for each in records if (each.topic, each.partition) in mine]

    def _throttle(self) -> None:
        """Pause partitions whose window is full, and resume those that have room again."""
        full, resumable = self.queue.full_and_resumable()
        mine = self._consumer.assignment
        self._paused &= mine
        for partition in (full - self._paused) & mine:
            self._call_if_assigned(self._consumer.pause, partition)
            self._paused.add(partition)
        for partition in self._paused & resumable:
            self._call_if_assigned(self._consumer.resume, partition)
            self._paused.discard(partition)

    def _call_if_assigned(self, call: Callable[[str, int], None], partition: Partition) -> None:
        try:
            call(*partition)
        except UsageError as error:
            # The partition was revoked at this moment.
            _logger.debug("%s", error)

    # Rebalances; called inside the consumer's poll

    def _on_assign(self, consumer: Consumer, partitions: list[Partition]) -> None:
        self.has_joined = True
        callback = self._settings.consumer.get("on_assign")
        if callback is not None:
            callback(consumer, partitions)

    def _on_revoke(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        if not self._is_closing:
            self._finish(partitions)
        self._on_lost(_consumer, partitions)

    def _finish(self, partitions: list[Partition]) -> None:
        if not self.queue.drain(partitions, self._settings.drain_timeout):
            _logger.warning(
                "Handlers of %s did not end in %s s: other members process their messages again.",
                ", ".join(f"{topic}-{number}" for topic, number in partitions),
                self._settings.drain_timeout,
            )
        try:
            self._release(partitions)
        except MillstreamError as error:
            _logger.warning("%s", error)

    def _release(self, partitions: Iterable[Partition]) -> None:
        """Commit what is finished, and that this worker gives the partitions up in order."""
        mine = [partition for partition in partitions if partition in self._opened]
        self.queue.release(mine)
        self._publisher.flush(mine)

    def _on_lost(self, _consumer: Consumer, partitions: list[Partition]) -> None:
        self._has_changed = True
        self.queue.drop(partitions)
        self._publisher.drop(partitions)
        for known in (self._paused, self._opened, self._unmarked):
            known.difference_update(partitions)

    # Shutdown

    def _drain(self) -> None:
        """Start no more jobs, wait for running ones, commit them, and leave the group."""
        self.queue.drain(self.queue.partitions(), self._settings.drain_timeout)
        self.queue.close()
        self._runner.stop()
        try:
            self._release(set(self._opened))
        finally:
            self._close()

    def _abandon(self) -> None:
        self.queue.close()
        self.queue.drop(self.queue.partitions())
        self._runner.stop()
        self._close()

    def _close(self) -> None:
        """Close the clients. Everything that can be committed is: revocations commit no more."""
        self._is_closing = True
        if self._clock is not None:
            self._clock.stop()
        for client in (self._consumer, self._producer):
            try:
                client.close()
            except MillstreamError as error:
                _logger.warning("%s", error)

    def _open_consumer(self, config: SessionConfig) -> Consumer:
        given = self._settings.consumer_options
        options: dict[str, Any] = {
            **given,
            "commit_interval": 0,
            "on_assign": self._on_assign,
            "on_revoke": self._on_revoke,
            "on_lost": self._on_lost,
            # Attempts are traced, not polls.
            "tracing": False,
        }
        own = [name for topic in config.topics for name in self._settings.own_topics(topic)]
        topics = [*config.topics, *own]
        consumer = Consumer(config.servers, group_id=config.group, topics=topics, **options)
        # Handlers may run on an event loop.
        load_ahead(consumer)
        return consumer

    def _producer_options(self, group: str) -> dict[str, Any]:
        options = self._settings.producer_options
        # The topic limits the size of a message, not the client.
        limit = {"message.max.bytes": _MESSAGE_BYTES_MAX}
        options["config"] = limit | dict(options.get("config", {}))
        options["tracing"] = False
        if self._settings.transactional:
            name = self._settings.name or uuid.uuid4().hex
            limits = {
                "transaction_timeout": _TRANSACTION_S_MAX,
                "delivery_timeout": _TRANSACTION_S_MAX / 2,
            }
            options = limits | options
            options |= {"transactional_id": f"{group}-{name}"}
        return options


def topic_queues(settings: WorkerSettings, limits: Mapping[str, RateLimit]) -> TopicQueues | None:
    """Return the queues of a worker with priorities or rate limits; None for all others."""
    if not settings.priorities and not limits and settings.rate_limit is None:
        return None
    limit = None if settings.rate_limit is None else RateLimit(settings.rate_limit)
    return TopicQueues(settings.priorities, limits, limit)
