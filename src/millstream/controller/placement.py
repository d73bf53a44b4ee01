"""Where the replicas of new partitions go: round robin over brokers, racks interleaved. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from millstream.model.error import BrokerError, ErrorCode


class Place(NamedTuple):
    """A broker that may hold replicas."""

    broker_id: int
    rack: str | None


def place_partitions(
    brokers: Sequence[Place], partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Replica lists for new partitions, the preferred leader first.

    `start` is where in the circle the first leader stands; callers choose it at random so that
    small topics do not pile up on one broker. Replicas of a partition are neighbours in a circle in
    which racks alternate, so they are on as many racks as there are, as far as possible.
    """
    if replication_factor < 1 or replication_factor > len(brokers):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {replication_factor} was asked for; "
            f"it must be between 1 and the number of brokers alive, {len(brokers)}",
        )
    circle = _interleave_racks(brokers)
    return [
        tuple(circle[(start + index + hop) % len(circle)] for hop in range(replication_factor))
        for index in range(partitions)
    ]


def _interleave_racks(brokers: Sequence[Place]) -> list[int]:
    by_rack: dict[str | None, list[int]] = defaultdict(list)
    for place in sorted(brokers):
        by_rack[place.rack].append(place.broker_id)
    rounds = zip_longest(*by_rack.values())
    return [broker_id for round_ in rounds for broker_id in round_ if broker_id is not None]
