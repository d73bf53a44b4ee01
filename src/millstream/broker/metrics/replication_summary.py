"""A look at replication for the metrics: what this broker leads; on the controller, everything.

Made before each scrape, in turns with other work: a broker may hold 100,000 partitions. Nothing is
counted while records are written.
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

_PER_TURN: Final = 500


@dataclass(slots=True)
class Led:
    """Of the partitions that this broker leads."""

    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    #: Of those that are under-replicated: one with all its replicas in sync is as it should be.
    at_min_isr: int = 0
    #: Records that replicas which a reassignment adds do not have yet.
    moving_records: int = 0
    #: By follower: records that it lacks in its worst partition, and for how long it has lacked
    #: something there.
    lag_records_max: dict[int, int] = field(default_factory=dict)
    lag_seconds_max: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Whole:
    """Of all partitions of the cluster, as the controller sees them."""

    partitions: int = 0
    offline: int = 0
    #: Of these, those without an in-sync replica: disks were lost, or stops were not clean.
    abandoned: int = 0
    reassigning: int = 0
    not_preferred: int = 0
    #: By broker that is decommissioned: the replicas it still has.
    to_empty: dict[int, int] = field(default_factory=dict)


class ClusterLook:
    """The last look. Event loop only."""

    __slots__ = ("_catalog", "_clock", "_node_id", "_replicas", "led", "whole")

    def __init__(self, node_id: int, catalog: Catalog, replicas: Replicas, clock: Clock) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._replicas = replicas
        self._clock = clock
        self.led = Led()
        #: Empty on all brokers but the controller.
        self.whole = Whole()

    @property
    def is_controller(self) -> bool:
        return self._catalog.image.controller == self._node_id

    async def look(self) -> None:
        self.led = await self._look_at_led()
        self.whole = await self._look_at_whole() if self.is_controller else Whole()

    async def _look_at_led(self) -> Led:
        found, now = Led(), self._clock.monotonic()
        for number, partition in enumerate(list(self._replicas), 1):
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)
            if partition.is_leader:
                _count_led(found, partition, now)
        return found

    async def _look_at_whole(self) -> Whole:
        image = self._catalog.image
        emptied = decommission.named(image.default_broker_configs)
        found, held = Whole(), Counter[int]()
        for number, topic in enumerate(image.topics.values(), 1):
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)
            _count_whole(found, topic)
            if emptied:
                held.update(each for record in topic.partitions for each in record.replicas)
        found.to_empty = {broker_id: held[broker_id] for broker_id in emptied}
        return found


def _count_led(found: Led, partition: Partition, now: float) -> None:
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


def _count_whole(found: Whole, topic: TopicRecord) -> None:
    found.partitions += len(topic.partitions)
    for record in topic.partitions:
        found.offline += record.leader == NO_LEADER
        found.abandoned += not record.isr
        found.reassigning += reassignment.is_under_way(record)
        found.not_preferred += record.leader != record.replicas[0]
