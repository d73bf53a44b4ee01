"""Counts of replication for the metrics: partitions led here; on the controller, all partitions.

Refreshed before each scrape, in slices that yield to the loop: a broker may hold 100,000
partitions. Nothing is counted on the produce path.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from millstream.controller import decommission, reassignment
from millstream.env.clock import Clock
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import TopicRecord
from millstream.metadata.min_isr import is_at_min_isr
from millstream.model.sentinel import NO_LEADER
from millstream.replication.leader.follower_state import NEVER
from millstream.replication.partition import Partition
from millstream.replication.replicas import Replicas

_PER_SLICE: Final = 500


@dataclass(slots=True)
class LedPartitions:
    """Counts over the partitions that this broker leads."""

    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    #: Under-replicated partitions whose ISR has just min.insync.replicas members.
    at_min_isr: int = 0
    #: Records that a reassignment still has to copy to the replicas it adds.
    moving_records: int = 0
    #: By follower: the lag in its worst partition, in records and in seconds.
    lag_records_max: dict[int, int] = field(default_factory=dict)
    lag_seconds_max: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterPartitions:
    """Counts over all partitions of the cluster, in the metadata."""

    partitions: int = 0
    offline: int = 0
    #: Offline partitions with an empty ISR: disks were lost, or brokers stopped uncleanly.
    abandoned: int = 0
    reassigning: int = 0
    not_preferred: int = 0
    #: Replicas left on each broker that is being decommissioned.
    to_empty: dict[int, int] = field(default_factory=dict)


class ReplicationSummary:
    """The counts of the last `refresh`. Event loop only."""

    __slots__ = ("_catalog", "_clock", "_node_id", "_replicas", "cluster", "led")

    def __init__(self, node_id: int, catalog: Catalog, replicas: Replicas, clock: Clock) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._replicas = replicas
        self._clock = clock
        self.led = LedPartitions()
        #: Zero on all brokers but the controller.
        self.cluster = ClusterPartitions()

    @property
    def is_controller(self) -> bool:
        return self._catalog.image.controller == self._node_id

    async def refresh(self) -> None:
        """Count again."""
        self.led = await self._count_led_partitions()
        self.cluster = (
            await self._count_cluster_partitions() if self.is_controller else ClusterPartitions()
        )

    async def _count_led_partitions(self) -> LedPartitions:
        found, now = LedPartitions(), self._clock.monotonic()
        for number, partition in enumerate(list(self._replicas), 1):
            if number % _PER_SLICE == 0:
                await asyncio.sleep(0)
            if partition.is_leader:
                _add_partition(found, partition, now)
        return found

    async def _count_cluster_partitions(self) -> ClusterPartitions:
        image = self._catalog.image
        emptied = decommission.named(image.default_broker_configs)
        found, held = ClusterPartitions(), Counter[int]()
        for number, topic in enumerate(image.topics.values(), 1):
            if number % _PER_SLICE == 0:
                await asyncio.sleep(0)
            _add_topic(found, topic)
            if emptied:
                held.update(each for record in topic.partitions for each in record.replicas)
        found.to_empty = {broker_id: held[broker_id] for broker_id in emptied}
        return found


def _add_partition(found: LedPartitions, partition: Partition, now: float) -> None:
    found.partitions += 1
    leadership, state = partition.leadership, partition.state
    if leadership is None:
        return
    found.under_min_isr += partition.is_under_min_isr
    if len(state.isr) < len(reassignment.target(state)):
        found.under_replicated += 1
        found.at_min_isr += is_at_min_isr(state, partition.log.config)
    end_offset = partition.log.log_end_offset
    for follower in leadership.followers.values():
        broker_id = follower.broker_id
        records = end_offset - max(follower.log_end_offset, 0)
        if broker_id in state.adding:
            found.moving_records += records
        if records > found.lag_records_max.setdefault(broker_id, 0):
            found.lag_records_max[broker_id] = records
        is_known = records > 0 and follower.caught_up_at != NEVER
        seconds = now - follower.caught_up_at if is_known else 0.0
        if seconds > found.lag_seconds_max.setdefault(broker_id, 0.0):
            found.lag_seconds_max[broker_id] = seconds


def _add_topic(found: ClusterPartitions, topic: TopicRecord) -> None:
    found.partitions += len(topic.partitions)
    for record in topic.partitions:
        found.offline += record.leader == NO_LEADER
        found.abandoned += not record.isr
        found.reassigning += reassignment.is_in_progress(record)
        found.not_preferred += record.leader != record.replicas[0]
