"""How unevenly a topic's records fall on its partitions and keys. No I/O.

Partitions are compared by their offsets, which needs no reading. Keys are counted in a sample in
which each partition has its due part, with a sketch whose memory is bounded: `capacity` keys, of
each at most `KEY_BYTES_MAX` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from millstream.cli.support.message import Message
from millstream.cli.support.position import Range
from millstream.client.hot_keys.heavy_hitter import HeavyHitters

#: A longer key is counted under its beginning and its digest.
KEY_BYTES_MAX: Final = 128
_DIGEST_BYTES: Final = 16
#: A partition with this many times its even part is hot.
HOT_RATIO: Final = 2.0


class PartitionLoad(NamedTuple):
    """What one partition has of a topic's records."""

    partition: int
    records: int
    share: float
    #: Times what it would have if all had the same.
    ratio: float

    @property
    def is_hot(self) -> bool:
        return self.ratio >= HOT_RATIO


class KeyLoad(NamedTuple):
    """What one key has of a sample: the bounds of its share."""

    key: bytes
    at_least: float
    at_most: float
    #: Where it was seen.
    partitions: list[int]


def partition_loads(ranges: Mapping[int, Range]) -> list[PartitionLoad]:
    """All partitions, the fullest first."""
    counts = {partition: each.end - each.start for partition, each in ranges.items()}
    total = sum(counts.values())
    loads = [
        PartitionLoad(
            partition,
            count,
            count / total if total else 0.0,
            count * len(counts) / total if total else 0.0,
        )
        for partition, count in counts.items()
    ]
    return sorted(loads, key=lambda load: (-load.records, load.partition))


def sample_starts(ranges: Mapping[int, Range], records_max: int) -> dict[int, int]:
    """Where to start reading for about `records_max` of the newest records, of each partition in
    proportion to what it has."""
    total = sum(each.end - each.start for each in ranges.values())
    if total <= records_max:
        return {partition: each.start for partition, each in ranges.items()}
    return {
        partition: each.end - -(-(each.end - each.start) * records_max // total)
        for partition, each in ranges.items()
    }


class KeyTally:
    """Counts the keys of a sample, by records or by bytes."""

    def __init__(self, capacity: int, *, by_bytes: bool) -> None:
        self._sketch: HeavyHitters[bytes] = HeavyHitters(capacity)
        self._by_bytes = by_bytes
        self._partitions: dict[bytes, set[int]] = {}
        self._partitions_max = 2 * capacity
        self.records = 0
        #: The weight of all, with a key or without.
        self._weight = 0

    def add(self, message: Message) -> None:
        key = message.key
        weight = len(key or b"") + len(message.value or b"") if self._by_bytes else 1
        self.records += 1
        self._weight += weight
        if key is None:
            return
        key = _bounded(key)
        self._sketch.add(key, weight)
        self._partitions.setdefault(key, set()).add(message.partition)
        if len(self._partitions) > self._partitions_max:
            counted = {hitter.item for hitter in self._sketch.top(self._partitions_max)}
            self._partitions = {k: seen for k, seen in self._partitions.items() if k in counted}

    @property
    def keyless_share(self) -> float:
        return self._share(self._weight - self._sketch.total)

    @property
    def error_share(self) -> float:
        """No share is off by more than this."""
        return self._share(self._sketch.error_max())

    def top(self, count: int) -> list[KeyLoad]:
        """The keys with the most, the most first."""
        return [
            KeyLoad(
                hitter.item,
                self._share(hitter.at_least),
                self._share(hitter.at_most),
                sorted(self._partitions[hitter.item]),
            )
            for hitter in self._sketch.top(count)
        ]

    def _share(self, weight: int) -> float:
        return weight / self._weight if self._weight else 0.0


def _bounded(key: bytes) -> bytes:
    if len(key) <= KEY_BYTES_MAX:
        return key
    digest = blake2b(key, digest_size=_DIGEST_BYTES).hexdigest().encode()
    return key[: KEY_BYTES_MAX - len(digest)] + digest
