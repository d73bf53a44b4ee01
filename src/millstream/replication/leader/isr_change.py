"""Brings the ISR changes that leaders on this broker propose to the metadata store.

Records followers' fetches, reviews the ISR periodically, and runs one attempt at a time for each
partition. `Leadership` decides what to propose. The outcome comes only from the metadata, through
`Partition.apply_state`.

An attempt ends in one of four ways:

    stored      the metadata already show it
    overtaken   the record has changed; the metadata will show that, and `Leadership` decides again
    rejected    a joining broker has lost its registration and may have lost records; the proposal
                is withdrawn
    failed      the outcome is unknown, so the same proposal is retried; if it was stored after all,
                the retry is overtaken
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from millstream.env.clock import Clock
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.partition_change import PartitionUpdate
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.leader.follower_state import FollowerFetch
from millstream.replication.leader.isr import LeaderView
from millstream.replication.leader.leadership import IsrProposal, Leadership
from millstream.replication.partition import Partition
from millstream.replication.stats import ReplicationStats

_logger = logging.getLogger(__name__)

#: `replace_partition` of a catalog, or `JointUpdates.update`.
Update: TypeAlias = Callable[[PartitionUpdate], Awaitable[PartitionRecord]]

#: Reviews of the ISR within the time that a replica may lag.
_REVIEWS: Final = 4
#: Partitions that are reviewed in one turn of the loop.
_PARTITIONS_PER_TURN: Final = 256
_ATTEMPTS_AT_ONCE: Final = 1024
_RETRY_S_MIN: Final = 0.05
_RETRY_S_MAX: Final = 2.0


class IsrChanges:
    """Runs between `start` and `stop`, on the event loop that called `start`."""

    __slots__ = (
        "_alive",
        "_attempts",
        "_clock",
        "_directories",
        "_eligible",
        "_lag_s_max",
        "_partitions",
        "_review_task",
        "_slots",
        "_stats",
        "_supervisor",
        "_update",
    )

    def __init__(
        self,
        update: Update,
        partitions: Iterable[Partition],
        clock: Clock,
        lag_ms_max: int,
        stats: ReplicationStats,
        supervisor: Supervisor,
    ) -> None:
        self._update = update
        self._supervisor = supervisor
        #: All partitions of this broker; iterated anew for each review.
        self._partitions = partitions
        self._clock = clock
        self._lag_s_max = lag_ms_max / 1000
        self._stats = stats
        #: Broker epochs of the brokers that are registered.
        self._alive: dict[int, int] = {}
        #: Broker epochs of the registered brokers that are not shutting down.
        self._eligible: dict[int, int] = {}
        #: The directory ids with which brokers are registered.
        self._directories: dict[int, str] = {}
        #: Partitions with an attempt in progress.
        self._attempts: dict[Partition, SupervisedTask] = {}
        self._slots = asyncio.Semaphore(_ATTEMPTS_AT_ONCE)
        self._review_task: SupervisedTask | None = None

    def start(self, image: ClusterImage) -> None:
        self._update_brokers(image)
        self._review_task = self._supervisor.start("isr-review", self._review_forever)

    async def stop(self) -> None:
        """Cancel all attempts and start no more. A proposal may still be stored. Followers may
        fetch until their connections are closed."""
        tasks = list(self._attempts.values())
        if self._review_task is not None:
            tasks.append(self._review_task)
            self._review_task = None
        for task in tasks:
            task.cancel()
        for task in tasks:
            await task.ended()

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Apply a delta. Called after the partitions have applied it."""
        if delta.leaving:
            self._update_brokers(image)
        if delta.brokers:
            self._update_brokers(image)
            for partition in list(self._partitions):
                self._review(partition)
        for old, new in delta.changed:
            if old.configs != new.configs:
                # With a lower minimum the ELR may be emptied, and the high watermark may advance.
                self._review_topic(new.name)

    def _review_topic(self, name: str) -> None:
        for partition in list(self._partitions):
            if partition.topic_partition.topic == name and partition.state.elr:
                self._review(partition)

    def _update_brokers(self, image: ClusterImage) -> None:
        self._alive = {broker_id: broker.epoch for broker_id, broker in image.brokers.items()}
        self._eligible = {each: self._alive[each] for each in image.eligible}
        self._directories = image.directories

    def fetched(self, partition: Partition, fetch: FollowerFetch) -> None:
        """Record a follower's fetch: it has every record below the fetch offset."""
        leadership = partition.leadership
        if leadership is None or not leadership.fetched(fetch, self._view(partition, fetch.now)):
            return
        partition.advance_high_watermark()
        partition.advance_low_watermark()
        if fetch.broker_id not in partition.state.isr or fetch.offset < partition.high_watermark:
            self._review(partition)

    def is_current(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker is registered, and under no later broker epoch."""
        registered = self._alive.get(broker_id)
        return registered is not None and broker_epoch >= registered

    def _view(self, partition: Partition, now: float) -> LeaderView:
        leadership = partition.leadership
        assert leadership is not None
        return LeaderView(
            partition.broker_id,
            partition.log.log_end_offset,
            partition.high_watermark,
            leadership.epoch_start_offset,
            self._eligible,
            now,
            self._lag_s_max,
            partition.min_isr,
            partition.log.failure is not None,
            self._directories,
        )

    # Reviews

    async def _review_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lag_s_max / _REVIEWS)
            for number, partition in enumerate(list(self._partitions)):
                if number % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                    await asyncio.sleep(0)
                self._review(partition)

    def review_soon(self, partition: Partition) -> None:
        """Review a partition in the next turn of the loop: its log went offline."""
        asyncio.get_running_loop().call_soon(self._review, partition)

    def _review(self, partition: Partition) -> None:
        try:
            self._review_leadership(partition)
        except Exception as error:  # noqa: BLE001  # reported; the loop continues
            self._supervisor.report("isr-review", error, str(partition.topic_partition))

    def _review_leadership(self, partition: Partition) -> None:
        leadership = partition.leadership
        if leadership is None:
            return
        view = self._view(partition, self._clock.monotonic())
        leadership.review(view)
        partition.advance_high_watermark()
        is_free = self._review_task is not None and partition not in self._attempts
        if is_free and leadership.wants_change(view):
            self._attempts[partition] = self._supervisor.start(
                "isr-change",
                partial(self._change, partition),
                about=str(partition.topic_partition),
            )

    # Changes

    async def _change(self, partition: Partition) -> None:
        """Store proposals until there is nothing left to propose."""
        pause_s = _RETRY_S_MIN
        while (leadership := partition.leadership) is not None:
            proposal = leadership.propose(self._view(partition, self._clock.monotonic()))
            if proposal is None:
                break
            if await self._attempt(partition, leadership, proposal):
                pause_s = _RETRY_S_MIN
                continue
            self._stats.isr_retries += 1
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _RETRY_S_MAX)
        # Not after a failure: the supervisor restarts this task, and there must be only one.
        del self._attempts[partition]

    async def _attempt(
        self, partition: Partition, leadership: Leadership, proposal: IsrProposal
    ) -> bool:
        """Return whether the proposal was stored."""
        record, joining = proposal
        before, name = partition.state.isr, partition.topic_partition
        try:
            async with self._slots:
                await self._update(
                    PartitionUpdate(
                        partition.log.topic_id,
                        name.partition,
                        record,
                        record.partition_epoch,
                        joining,
                    )
                )
        except (BrokerError, MetadataStoreError) as error:
            _logger.debug(
                "ISR of %s not changed from %s to %s: %s", name, before, record.isr, error
            )
            if isinstance(error, BrokerError) and error.code is ErrorCode.INELIGIBLE_REPLICA:
                leadership.withdraw(proposal)
            return False
        _logger.info("ISR of %s changed from %s to %s", name, before, record.isr)
        self._stats.isr_shrinks += not set(before) <= set(record.isr)
        self._stats.isr_expands += bool(joining)
        return True
