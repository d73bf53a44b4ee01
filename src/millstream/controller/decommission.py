"""Moves all replicas off decommissioned brokers. Pure.

The cluster-wide setting `decommissioned.brokers` names these brokers. It is in the metadata store,
so it survives the controller. A named broker gets no new replicas, and `Decommission` returns
reassignments that move the present ones away, a bounded number at a time. A replica is replaced at
the same position in the order of preference. Brokers on racks that the partition does not use yet
come first, and among them the one with the fewest replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from millstream.controller import reassignment
from millstream.metadata.cluster_record import Configs, PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage
from millstream.metadata.partition_change import PartitionChange
from millstream.model.error import BrokerError, ErrorCode

SETTING: Final = "decommissioned.brokers"
#: Largest number of reassignments in progress.
_MOVES_MAX: Final = 50


def named(configs: Configs) -> frozenset[int]:
    """Return the brokers that the setting names in the cluster-wide settings."""
    text = configs.get(SETTING, "")
    return frozenset(int(item) for item in text.split(",") if item.strip())


def check(image: ClusterImage, wanted: Collection[int]) -> None:
    """Raise INVALID_CONFIG unless the remaining brokers can have all replicas of these brokers."""
    present = named(image.default_broker_configs)
    remaining = [broker_id for broker_id in image.brokers if broker_id not in wanted]
    if not remaining:
        raise BrokerError(ErrorCode.INVALID_CONFIG, "no broker would remain")
    holders: set[int] = set(image.brokers)
    for topic in image.topics.values():
        for record in topic.partitions:
            target = reassignment.target(record)
            holders.update(record.replicas)
            if len(target) > len(remaining) and not present.issuperset(set(wanted) & set(target)):
                raise BrokerError(
                    ErrorCode.INVALID_CONFIG,
                    f"{len(remaining)} brokers would remain, and partitions of topic {topic.name}"
                    f" have {len(target)} replicas: add brokers first, or give the topic fewer"
                    " replicas",
                )
    for broker_id in wanted:
        if broker_id not in holders and broker_id not in present:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"there is no broker {broker_id}: it is not alive and has no replicas",
            )


class Decommission:
    """One pass over all topics: `add` each of them, then get the `changes`."""

    __slots__ = ("_held", "_image", "_in_progress", "_preferred", "_to_move", "brokers")

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self.brokers = named(image.default_broker_configs)
        #: Number of replicas, and of preferred replicas, by broker, after all reassignments.
        self._held: Counter[int] = Counter()
        self._preferred: Counter[int] = Counter()
        self._to_move: list[tuple[TopicRecord, int]] = []
        self._in_progress = 0

    def add(self, topic: TopicRecord) -> None:
        for number, record in enumerate(topic.partitions):
            target = reassignment.target(record)
            self._held.update(target)
            self._preferred[target[0]] += 1
            if not self.brokers.isdisjoint(target):
                self._to_move.append((topic, number))
            elif not self.brokers.isdisjoint(record.removing):
                self._in_progress += 1

    def changes(self) -> list[PartitionChange]:
        """Return the next reassignments, as many as may start now."""
        changes: list[PartitionChange] = []
        for topic, number in self._to_move:
            if self._in_progress + len(changes) >= _MOVES_MAX:
                break
            record = topic.partitions[number]
            wanted = self._replace(reassignment.target(record))
            after = self._begin(record, wanted) if wanted is not None else None
            if after is not None:
                changes.append(PartitionChange(topic.topic_id, number, record, after))
        return changes

    def _begin(self, record: PartitionRecord, wanted: tuple[int, ...]) -> PartitionRecord | None:
        try:
            return reassignment.begin(record, wanted, self._image.eligible)
        except BrokerError:
            # Only added replicas are in sync: the present reassignment must complete first.
            return None

    def _replace(self, target: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the replicas without decommissioned brokers; None if too few brokers are left."""
        wanted = list(target)
        for place, broker_id in enumerate(target):
            if broker_id not in self.brokers:
                continue
            found = self._choose(wanted, place)
            if found is None:
                return None
            wanted[place] = found
        for before, after in zip(target, wanted, strict=True):
            self._held[before] -= 1
            self._held[after] += 1
        self._preferred[target[0]] -= 1
        self._preferred[wanted[0]] += 1
        return tuple(wanted)

    def _choose(self, wanted: list[int], place: int) -> int | None:
        brokers = self._image.brokers
        others = [broker_id for at, broker_id in enumerate(wanted) if at != place]
        racks = {brokers[each].rack for each in others if each in brokers} - {None}

        def rank(broker_id: int) -> tuple[bool, int, int, int]:
            preferred = self._preferred[broker_id] if place == 0 else 0
            is_rack_used = brokers[broker_id].rack in racks
            return (is_rack_used, self._held[broker_id], preferred, broker_id)

        candidates = [
            broker_id
            for broker_id in self._image.eligible
            if broker_id not in self.brokers and broker_id not in wanted
        ]
        return min(candidates, key=rank, default=None)
