"""Plans the replicas of partitions on other brokers. Pure.

A partition keeps the replicas that may stay, so that few records are copied. The missing replicas
go to the brokers with the fewest, and so does the preferred leader if its broker changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Move(NamedTuple):
    """The change of one partition. Replicas are node ids; the first is the preferred leader."""

    topic: str
    partition: int
    current: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def is_changed(self) -> bool:
        return self.current != self.new


def parse_brokers(text: str) -> tuple[int, ...]:
    """Parse `1,2,3`. Raises ValueError with a sentence."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not a list of brokers: give their ids, for example 1,2,3")
    brokers = tuple(int(part) for part in parts)
    if len(set(brokers)) < len(brokers):
        raise ValueError(f"{text!r} names a broker twice")
    return brokers


def plan_exact(
    partitions: Mapping[tuple[str, int], Sequence[int]], brokers: Sequence[int]
) -> list[Move]:
    """Put every partition on exactly these brokers, in this order."""
    return [Move(*key, tuple(now), tuple(brokers)) for key, now in sorted(partitions.items())]


def plan_spread(
    partitions: Mapping[tuple[str, int], Sequence[int]],
    brokers: Iterable[int],
    replication_factor: int | None,
) -> list[Move]:
    """Spread the partitions over these brokers. None keeps the replication factor.

    Raises ValueError if there are fewer brokers than replicas."""
    allowed = sorted(set(brokers))
    replicas: Counter[int] = Counter(dict.fromkeys(allowed, 0))
    leads: Counter[int] = Counter(dict.fromkeys(allowed, 0))
    kept = {
        key: [each for each in now if each in replicas][: replication_factor or len(now)]
        for key, now in partitions.items()
    }
    for staying in kept.values():
        replicas.update(staying)
    for key, now in partitions.items():
        if kept[key][:1] == list(now[:1]):
            leads.update(now[:1])
    moves = []
    for key, now in sorted(partitions.items()):
        chosen = kept[key]
        wanted = replication_factor or len(now)
        if wanted > len(allowed):
            raise ValueError(
                f"{key[0]}-{key[1]} has {wanted} replicas, and only {len(allowed)} brokers are"
                " given: name more brokers, or give --replication-factor"
            )
        has_leader = chosen[:1] == list(now[:1])
        _fill(chosen, wanted, allowed, replicas)
        if not has_leader:
            first = min(chosen, key=lambda each: (leads[each], chosen.index(each)))
            chosen.remove(first)
            chosen.insert(0, first)
            leads[first] += 1
        moves.append(Move(*key, tuple(now), tuple(chosen)))
    return moves


def _fill(chosen: list[int], wanted: int, allowed: Sequence[int], replicas: Counter[int]) -> None:
    """Add brokers with the fewest replicas until there are enough."""
    while len(chosen) < wanted:
        free = [each for each in allowed if each not in chosen]
        chosen.append(min(free, key=lambda each: (replicas[each], each)))
        replicas[chosen[-1]] += 1
