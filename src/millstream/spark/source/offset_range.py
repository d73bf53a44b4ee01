"""The offset ranges of a batch, and how they are split among tasks. Pure.

Ranges are `[start, end)`. The parts of a split range are in order, not empty, and cover the range
without gaps or overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from millstream.model.topic import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `[start, end)` of a partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.key} from offset {self.start} to {self.end}"


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return the non-empty ranges between two positions, for every partition of `end`."""
    found = [OffsetRange(*key, start[key], offset) for key, offset in sorted(end.items())]
    return [one for one in found if one.size]


def bound_offsets(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    target: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Limit `end` to `target`, but never below `start`.

    Partitions that are neither in `start` nor in `target` are left out."""
    return {
        key: min(offset, max(start.get(key, 0), target.get(key, 0)))
        for key, offset in end.items()
        if key in start or key in target
    }


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Lower `end` so that about `limit` offsets remain, in proportion to the size of each range.

    As in Spark's Kafka connector, every partition with records advances by at least one offset, so
    that no partition starves. The result can exceed `limit` by the number of partitions.
    """
    sizes = {key: max(0, offset - start[key]) for key, offset in end.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    return {
        key: end[key] if not size else start[key] + max(1, limit * size // total)
        for key, size in sizes.items()
    }


def split_ranges(
    ranges: Iterable[OffsetRange], parts_min: int | None = None, size_max: int | None = None
) -> list[OffsetRange]:
    """Split ranges into parts of at most `size_max`, and at least `parts_min` if possible."""
    pieces = [one for one in ranges if one.size]
    if size_max is not None:
        pieces = [
            part for one in pieces for part in split_evenly(one, math.ceil(one.size / size_max))
        ]
    if parts_min is None or len(pieces) >= parts_min:
        return pieces
    shares = _shares([one.size for one in pieces], parts_min)
    return [
        part for one, share in zip(pieces, shares, strict=True) for part in split_evenly(one, share)
    ]


def split_evenly(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Split a range into `count` parts of nearly equal size, or one per offset if fewer."""
    count = min(count, whole.size)
    bounds = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [replace(whole, start=low, end=high) for low, high in pairwise(bounds)]


def _shares(sizes: list[int], count: int) -> list[int]:
    """Divide `count` parts among ranges by size: at least one each, at most one per offset."""
    total = sum(sizes)
    shares = [min(size, max(1, count * size // total)) for size in sizes]
    # The parts that rounding leaves over go to the ranges with the largest parts.
    missing = min(count, total) - sum(shares)
    for _ in range(max(0, missing)):
        largest = max(range(len(sizes)), key=lambda index: sizes[index] / shares[index])
        shares[largest] += 1
    return shares
