"""How fast each partition grows: bytes per second, smoothed over about a minute.

Measured by comparing the end of a log at two samples, so that appends pay nothing for it. Only
loaded logs are sampled. An idle log is forgotten and counts as not growing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.log.log import PartitionLog
from millstream.model.topic import TopicPartition

#: Time constant: after it, the smoothed rate shows about two thirds of a change.
SMOOTHING_S: Final = 60.0


class _Sample(NamedTuple):
    """The end of a log at one time: its last segment, and the size of that segment."""

    taken_at: float
    base_offset: int
    size: int


class GrowthRates:
    """The growth rates of a broker's partitions. Event loop only."""

    __slots__ = ("_rates", "_samples")

    def __init__(self) -> None:
        self._samples: dict[TopicPartition, _Sample] = {}
        #: Of logs that were sampled at least twice.
        self._rates: dict[TopicPartition, float] = {}

    def sample(self, log: PartitionLog, now: float) -> None:
        """Record the end of a log at `now`, in seconds of a monotonic clock."""
        key = log.topic_partition
        if not log.is_loaded or not log.segments:
            self.forget(key)
            return
        last = log.segments[-1]
        previous = self._samples.get(key)
        self._samples[key] = _Sample(now, last.base_offset, last.size)
        if previous is None or now <= previous.taken_at:
            return
        elapsed_s = now - previous.taken_at
        measured = _bytes_since(log, previous) / elapsed_s
        before = self._rates.get(key, measured)
        weight = 1.0 - math.exp(-elapsed_s / SMOOTHING_S)
        self._rates[key] = before + (measured - before) * weight

    def forget(self, key: TopicPartition) -> None:
        self._samples.pop(key, None)
        self._rates.pop(key, None)

    def forget_others(self, is_here: Callable[[TopicPartition], bool]) -> None:
        """Forget partitions that were deleted or moved away."""
        for key in [key for key in self._samples if not is_here(key)]:
            self.forget(key)

    def bytes_per_second(self, key: TopicPartition) -> float:
        """Return the growth rate; 0 before the partition was sampled twice."""
        return self._rates.get(key, 0.0)

    def hottest(self, count: int) -> list[tuple[TopicPartition, float]]:
        """Return the partitions that grow fastest, in descending order of their rate."""
        growing = ((key, rate) for key, rate in self._rates.items() if rate >= 1.0)
        return heapq.nlargest(count, growing, key=lambda item: item[1])


def _bytes_since(log: PartitionLog, sample: _Sample) -> int:
    appended = -sample.size
    for segment in reversed(log.segments):
        if segment.base_offset < sample.base_offset:
            break
        appended += segment.size
    # Negative if the log was truncated, or segments were deleted or compacted.
    return max(appended, 0)
