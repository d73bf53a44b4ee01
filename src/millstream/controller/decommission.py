"""Emptying brokers: which of their replicas go next, and where to. Pure.

The setting `decommissioned.brokers`, which all brokers share, names those that are to hold nothing.
It lives in the metadata store, so nothing of it is lost with a controller. As long as it names a
broker, no new replica is placed there, and `Emptying` gives reassignments that take the present
ones away, a bounded number at a time. A replica that goes is replaced at the same place in the
order of preference, by a broker on a rack that the partition does not use yet where there is one,
and among those by the one that holds least.
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
#: Reassignments under way at a time.
_MOVES_MAX: Final = 50


def named(configs: Configs) -> frozenset[int]:
    """The brokers that the setting names, in the run-time settings of all brokers."""
    text = configs.get(SETTING, "")
    return frozenset(int(item) for item in text.split(",") if item.strip())


def check(image: ClusterImage, wanted: Collection[int]) -> None:
    """INVALID_CONFIG unless those who remain could hold everything that these brokers have."""
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


class Emptying:
    """One look at all partitions: `add` each of them, then take the `changes`."""

    __slots__ = ("_held", "_image", "_preferred", "_to_move", "_under_way", "emptied")

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self.emptied = named(image.default_broker_configs)
        #: Replicas by broker, and those that come first, as they will be.
        self._held: Counter[int] = Counter()
        self._preferred: Counter[int] = Counter()
        self._to_move: list[tuple[TopicRecord, int]] = []
        self._under_way = 0

    def add(self, topic: TopicRecord) -> None:
        for number, record in enumerate(topic.partitions):
            target = reassignment.target(record)
            self._held.update(target)
            self._preferred[target[0]] += 1
            if not self.emptied.isdisjoint(target):
                self._to_move.append((topic, number))
            elif not self.emptied.isdisjoint(record.removing):
                self._under_way += 1

    def changes(self) -> list[PartitionChange]:
        """The next reassignments, as many as may begin now."""
        changes: list[PartitionChange] = []
        for topic, number in self._to_move:
            if self._under_way + len(changes) >= _MOVES_MAX:
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
            # Only replicas that another reassignment adds are in sync: that one ends first.
            return None

    def _replace(self, target: tuple[int, ...]) -> tuple[int, ...] | None:
        """The replicas with others in the place of those that go; None if there are too few."""
        wanted = list(target)
        for place, broker_id in enumerate(target):
            if broker_id not in self.emptied:
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
            if broker_id not in self.emptied and broker_id not in wanted
        ]
        return min(candidates, key=rank, default=None)
