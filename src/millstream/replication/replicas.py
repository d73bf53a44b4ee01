"""All replicas on this broker, as the cluster metadata demand.

Owns the map from topic and partition to `Partition`, and each partition's log. Applies deltas:
creates, changes and drops partitions. Does not decide about leadership.

If applying a delta fails for one partition, because its disk fails or a callback raises, the others
are not affected. That partition leads nothing until a retry succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from millstream.log.directory.data_directory import LogDirectory
from millstream.log.flush.flusher import Flusher
from millstream.log.log import PartitionLog
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.image import ClusterImage, ImageDelta, TopicRecord
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicId, TopicPartition
from millstream.replication.partition import Partition
from millstream.replication.partition_port import Counters, Latency

_logger = logging.getLogger(__name__)

#: Pause before a partition whose role could not be applied is retried.
_RETRY_S: Final = 1.0


class Replicas:
    """The replicas of one broker, and the `Host` of their partitions. Event loop only."""

    __slots__ = (
        "_awake",
        "_broker_id",
        "_counters",
        "_defaults",
        "_directory",
        "_failed",
        "_flusher",
        "_flushes_before_ack",
        "_image",
        "_is_fenced",
        "_is_open",
        "_partitions",
        "failures",
        "on_drop",
        "on_retried",
        "on_truncate",
    )

    def __init__(
        self,
        broker_id: int,
        directory: LogDirectory,
        defaults: TopicConfig,
        counters: Callable[[str, int], tuple[Counters, Latency]],
        flusher: Flusher,
        *,
        flushes_before_ack: bool,
        failures: CallbackFailures | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._directory = directory
        #: Records the failures of callbacks of all partitions.
        self.failures = failures or CallbackFailures()
        #: The defaults for topic settings.
        self._defaults = defaults
        self._counters = counters
        self._flusher = flusher
        self._flushes_before_ack = flushes_before_ack
        self._image = ClusterImage()
        self._is_fenced = False
        #: Whether the first image is applied. From then on a log that can't be opened does not stop
        #: the broker.
        self._is_open = False
        self._partitions: dict[tuple[str, int], Partition] = {}
        #: Partitions to wake at the end of this turn of the loop.
        self._awake: list[Partition] = []
        #: Called before a log is deleted, for background work on logs.
        self.on_drop: Callable[[TopicPartition], None] = lambda _: None
        #: Partitions that could not be opened or whose role could not be applied.
        self._failed: set[TopicPartition] = set()
        #: Called when a retry has applied such a partition's role.
        self.on_retried: Callable[[Partition], None] = lambda _: None
        #: Called with the new log end after a log was truncated.
        self.on_truncate: Callable[[TopicPartition, int], None] = lambda _, __: None

    def find(self, topic: str, partition: int) -> Partition:
        """Return a partition, or raise UNKNOWN_TOPIC_OR_PARTITION."""
        found = self._partitions.get((topic, partition))
        if found is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def get(self, topic: str, partition: int) -> Partition | None:
        return self._partitions.get((topic, partition))

    def find_by_id(self, topic_id: TopicId, partition: int) -> Partition | None:
        """Return a partition by topic id, as followers name it; None if it is not here."""
        topic = self._image.topic_names.get(topic_id)
        return self._partitions.get((topic, partition)) if topic is not None else None

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._image.topic_names.get(topic_id)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the offset from which on retention and compaction must keep records."""
        partition = self._partitions.get(topic_partition)
        return partition.high_watermark if partition is not None else 0

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {each.topic_partition: each.high_watermark for each in self._partitions.values()}

    # Metadata

    def open_logs(self, image: ClusterImage) -> None:
        """Open every log of this broker, so that all logs can be recovered."""
        for topic in image.topics.values():
            config = self.config(topic)
            for number, state in enumerate(topic.partitions):
                if self._broker_id in state.replicas:
                    self._log(TopicPartition(topic.name, number), topic, config)

    def _log(
        self, topic_partition: TopicPartition, topic: TopicRecord, config: TopicConfig
    ) -> PartitionLog:
        state = topic.partitions[topic_partition.partition]
        return self._directory.log(
            topic_partition, topic.topic_id, config, is_only_replica=len(state.replicas) == 1
        )

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Create, change and drop partitions so that they match `image`.

        `delta` is the difference to the previous image. Raises OSError if a log can't be opened for
        the first image: the broker does not start."""
        self._image = image
        for topic in delta.deleted:
            for number in range(len(topic.partitions)):
                self._drop(topic.name, number)
        for topic in delta.created:
            self._open(topic, 0)
        for old, new in delta.changed:
            if old.configs != new.configs:
                self._configure(new)
            self._change(old, new)
        self._is_open = True

    def set_defaults(self, defaults: TopicConfig) -> None:
        """Apply new broker defaults to every topic."""
        self._defaults = defaults
        for topic in self._image.topics.values():
            self._configure(topic)

    def fence(self, is_fenced: bool) -> None:
        """While fenced, lead only partitions without another replica: another broker may already be
        elected leader."""
        self._is_fenced = is_fenced
        for partition in self._partitions.values():
            state = self._image.partition(*partition.topic_partition)
            if state is not None and partition.state != self._role(state):
                self._apply_state(partition, state, partition.high_watermark)

    def _apply_state(
        self, partition: Partition, state: PartitionRecord, high_watermark: int
    ) -> None:
        """Apply a partition's role. If that fails, the partition leads nothing and is retried."""
        topic_partition = partition.topic_partition
        try:
            partition.apply_state(self._role(state), high_watermark)
        except Exception as error:  # noqa: BLE001  # logged and counted; retried
            self.failures.note(CallbackKind.LEADERSHIP, error, topic_partition)
            self._failed.add(topic_partition)
            partition.retire()
            loop = asyncio.get_running_loop()
            loop.call_later(_RETRY_S, self._retry, partition)
        else:
            if topic_partition in self._failed:
                self._failed.discard(topic_partition)
                self.on_retried(partition)

    def _retry(self, partition: Partition) -> None:
        topic_partition = partition.topic_partition
        state = self._image.partition(*topic_partition)
        is_here = self._partitions.get(topic_partition) is partition
        if is_here and state is not None and partition.state != self._role(state):
            self._apply_state(partition, state, partition.high_watermark)

    def _role(self, state: PartitionRecord) -> PartitionRecord:
        """Return the partition's record, without the leader if this broker is fenced."""
        if self._is_fenced and state.leader == self._broker_id and len(state.replicas) > 1:
            return msgspec.structs.replace(state, leader=NO_LEADER)
        return state

    def config(self, topic: TopicRecord) -> TopicConfig:
        return TopicConfig.from_strings(topic.configs, self._defaults)

    def _open(self, topic: TopicRecord, first: int) -> None:
        config = self.config(topic)
        for number in range(first, len(topic.partitions)):
            if self._broker_id in topic.partitions[number].replicas:
                self._open_one(topic, number, config)

    def _open_one(self, topic: TopicRecord, number: int, config: TopicConfig) -> None:
        try:
            self._make(topic, number, config)
        except Exception as error:
            if not self._is_open:
                raise
            topic_partition = TopicPartition(topic.name, number)
            self.failures.note(CallbackKind.LEADERSHIP, error, topic_partition)
            self._failed.add(topic_partition)
            loop = asyncio.get_running_loop()
            loop.call_later(_RETRY_S, self._retry_open, topic.name, number)

    def _retry_open(self, name: str, number: int) -> None:
        topic = self._image.topic(name)
        if (
            topic is not None
            and (name, number) not in self._partitions
            and number < len(topic.partitions)
            and self._broker_id in topic.partitions[number].replicas
        ):
            self._open_one(topic, number, self.config(topic))

    def _make(self, topic: TopicRecord, number: int, config: TopicConfig) -> None:
        state = self._role(topic.partitions[number])
        topic_partition = TopicPartition(topic.name, number)
        log = self._log(topic_partition, topic, config)
        partition = Partition(
            self._broker_id, log, state, self, flushes_before_ack=self._flushes_before_ack
        )
        self._partitions[topic_partition] = partition
        high_watermark = self._directory.high_watermarks.get(topic_partition, 0)
        self._apply_state(partition, topic.partitions[number], high_watermark)

    def _change(self, old: TopicRecord, new: TopicRecord) -> None:
        for number, state in enumerate(new.partitions[: len(old.partitions)]):
            partition = self._partitions.get((new.name, number))
            if self._broker_id not in state.replicas:
                self._drop(new.name, number)
            elif partition is None:
                self._open_one(new, number, self.config(new))
            elif partition.state != self._role(state):
                self._apply_state(partition, state, partition.high_watermark)
        self._open(new, len(old.partitions))

    def _configure(self, topic: TopicRecord) -> None:
        config = self.config(topic)
        for number in range(len(topic.partitions)):
            partition = self._partitions.get((topic.name, number))
            if partition is not None:
                about = partition.topic_partition
                self.failures.run(
                    CallbackKind.LEADERSHIP, about, partition.log.update_config, config
                )

    def _drop(self, topic: str, number: int) -> None:
        self._failed.discard(TopicPartition(topic, number))
        partition = self._partitions.pop((topic, number), None)
        if partition is not None:
            about = partition.topic_partition
            self.failures.run(CallbackKind.LEADERSHIP, about, self._dispose, partition)

    def _dispose(self, partition: Partition) -> None:
        self.on_drop(partition.topic_partition)
        partition.retire()
        self._directory.delete(partition.topic_partition)

    # Host of the partitions

    def wake_later(self, partition: Partition) -> None:
        if not self._awake:
            asyncio.get_running_loop().call_soon(self._wake_all)
        self._awake.append(partition)

    def _wake_all(self) -> None:
        awake, self._awake = self._awake, []
        for partition in awake:
            self.failures.run(CallbackKind.FETCH_WAKE_UP, partition.topic_partition, partition.wake)

    def flush(self, partition: Partition) -> None:
        future = self._flusher.request(partition.log)
        future.add_done_callback(lambda done: self._flushed(partition, done))

    def _flushed(self, partition: Partition, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            about = partition.topic_partition
            self.failures.run(CallbackKind.FLUSH, about, partition.flushed, done.result())
        else:
            _logger.error("fsync of %s failed: %s", partition.topic_partition, error)

    async def make_durable(self, partitions: Iterable[Partition]) -> None:
        """Flush these partitions' logs. Raises BrokerError."""
        futures = [asyncio.shield(self._flusher.request(each.log)) for each in partitions]
        # Wait for all of them, even if one fails: the others must be durable on return.
        for result in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def truncated(self, partition: Partition, offset: int) -> None:
        self.on_truncate(partition.topic_partition, offset)

    def monotonic(self) -> float:
        return self._directory.storage.clock.monotonic()

    def counters(self, partition: Partition) -> tuple[Counters, Latency]:
        return self._counters(*partition.topic_partition)
