"""The distribution of a topic's records over its partitions and keys. No I/O.

Partitions are compared by their offsets, without reading records. Keys are counted in a sample that
contains each partition in proportion. The count uses a sketch of bounded memory: `capacity` keys of
at most `KEY_BYTES_MAX` bytes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from millstream.cli.support.message import TextMessage
from millstream.cli.support.position import Range
from millstream.client.hot_keys.heavy_hitter import HeavyHitters

#: A longer key is counted by its first bytes and its digest.
KEY_BYTES_MAX: Final = 128
_DIGEST_BYTES: Final = 16
#: A partition with this many times its even share is hot.
HOT_RATIO: Final = 2.0


class PartitionLoad(NamedTuple):
    """The share of one partition in a topic's records."""

    partition: int
    records: int
    share: float
    #: The share divided by the even share.
    ratio: float

    @property
    def is_hot(self) -> bool:
        return self.ratio >= HOT_RATIO


class KeyLoad(NamedTuple):
    """The share of one key in a sample, as lower and upper bound."""

    key: bytes
    at_least: float
    at_most: float
    #: The partitions in which the key occurs.
    partitions: list[int]


def partition_loads(ranges: Mapping[int, Range]) -> list[PartitionLoad]:
    """Return all partitions, the largest first."""
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
    """Return the start offsets for about `records_max` of the newest records, in proportion to the
    size of each partition."""
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
        #: The weight of all messages, with and without a key.
        self._weight = 0

    def add(self, message: TextMessage) -> None:
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
        """The largest error of a share."""
        return self._share(self._sketch.error_max())

    def top(self, count: int) -> list[KeyLoad]:
        """Return the `count` keys with the largest shares, the largest first."""
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
