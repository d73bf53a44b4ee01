"""Places the replicas of new partitions: round robin over brokers, spread over racks. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from millstream.model.error import BrokerError, ErrorCode


class PlacementBroker(NamedTuple):
    """A broker that may get replicas."""

    broker_id: int
    rack: str | None


def place_partitions(
    brokers: Sequence[PlacementBroker],
    partitions: int,
    replication_factor: int,
    start: int,
    absent: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition, the preferred leader first.

    `start` is the position of the first leader in a circle of brokers. Callers choose it at random,
    so that small topics do not all start on one broker. A partition's replicas are on as many racks
    as possible. If racks have equally many brokers, replicas are neighbours in a circle in which
    racks alternate; otherwise each replica is chosen singly.

    `absent` are brokers of the cluster that are down. They get replicas only if there are too few
    live brokers, and are last in the list. As in Kafka, topics can be created while a broker is
    down.
    """
    count = len(brokers) + len(absent)
    if replication_factor < 1 or replication_factor > count:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor is {replication_factor}; "
            f"it must be between 1 and the number of brokers, {count}",
        )
    if not brokers:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "no live broker may get new replicas"
        )
    lacking = replication_factor - len(brokers)
    if lacking > 0:
        placed = _place_live(brokers, partitions, len(brokers), start)
        return [
            (*live, *(absent[(index + hop) % len(absent)] for hop in range(lacking)))
            for index, live in enumerate(placed)
        ]
    return _place_live(brokers, partitions, replication_factor, start)


def _place_live(
    brokers: Sequence[PlacementBroker], partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    circle = _interleave_racks(brokers)
    if len(set(Counter(place.rack for place in brokers).values())) > 1:
        racks = {place.broker_id: place.rack for place in brokers}
        return _place_singly(circle, racks, partitions, replication_factor, start)
    return [
        tuple(circle[(start + index + hop) % len(circle)] for hop in range(replication_factor))
        for index in range(partitions)
    ]


def _place_singly(
    circle: list[int],
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    start: int,
) -> list[tuple[int, ...]]:
    """Place replicas singly: leaders in turn, then brokers on the least used racks that
    have the fewest replicas."""
    held: Counter[int] = Counter()
    placed: list[tuple[int, ...]] = []
    for index in range(partitions):
        leader_at = (start + index) % len(circle)
        turned = circle[leader_at:] + circle[:leader_at]
        chosen = [turned[0]]
        while len(chosen) < replication_factor:
            used = Counter(racks[each] for each in chosen)
            # `min` keeps the order of the circle among equals.
            rest = [(used[racks[each]], held[each], each) for each in turned if each not in chosen]
            chosen.append(min(rest, key=lambda rank: rank[:2])[2])
        held.update(chosen)
        placed.append(tuple(chosen))
    return placed


def _interleave_racks(brokers: Sequence[PlacementBroker]) -> list[int]:
    by_rack: dict[str | None, list[int]] = defaultdict(list)
    for place in sorted(brokers):
        by_rack[place.rack].append(place.broker_id)
    rounds = zip_longest(*by_rack.values())
    return [broker_id for round_ in rounds for broker_id in round_ if broker_id is not None]
