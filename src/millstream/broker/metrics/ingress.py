"""How fast each partition grows: bytes a second, smoothed over about a minute.

Found by comparing where a log ended at two looks, so that appending pays nothing for it. Only logs
in use are looked at; an idle one is forgotten and counts as not growing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.log.log import PartitionLog
from millstream.model.topic import TopicPartition

#: A change of the rate is shown to about two thirds after this time.
SMOOTHING_S: Final = 60.0


class _Mark(NamedTuple):
    """Where a log ended: its last segment, and that one's size."""

    taken_at: float
    base_offset: int
    size: int


class IngressRates:
    """Event loop only."""

    __slots__ = ("_marks", "_rates")

    def __init__(self) -> None:
        self._marks: dict[TopicPartition, _Mark] = {}
        #: Of logs that were looked at twice.
        self._rates: dict[TopicPartition, float] = {}

    def look(self, log: PartitionLog, now: float) -> None:
        """Note where a log ends at `now`, seconds of a monotonic clock."""
        key = log.topic_partition
        if not log.is_loaded or not log.segments:
            self.forget(key)
            return
        last = log.segments[-1]
        mark = self._marks.get(key)
        self._marks[key] = _Mark(now, last.base_offset, last.size)
        if mark is None or now <= mark.taken_at:
            return
        elapsed_s = now - mark.taken_at
        measured = _bytes_since(log, mark) / elapsed_s
        before = self._rates.get(key, measured)
        weight = 1.0 - math.exp(-elapsed_s / SMOOTHING_S)
        self._rates[key] = before + (measured - before) * weight

    def forget(self, key: TopicPartition) -> None:
        self._marks.pop(key, None)
        self._rates.pop(key, None)

    def forget_others(self, is_here: Callable[[TopicPartition], bool]) -> None:
        """Forget partitions that were deleted or moved away."""
        for key in [key for key in self._marks if not is_here(key)]:
            self.forget(key)

    def bytes_per_second(self, key: TopicPartition) -> float:
        """0 also of a partition that was not looked at twice yet."""
        return self._rates.get(key, 0.0)

    def hottest(self, count: int) -> list[tuple[TopicPartition, float]]:
        """The partitions that grow fastest, the fastest first."""
        growing = ((key, rate) for key, rate in self._rates.items() if rate >= 1.0)
        return heapq.nlargest(count, growing, key=lambda item: item[1])


def _bytes_since(log: PartitionLog, mark: _Mark) -> int:
    appended = -mark.size
    for segment in reversed(log.segments):
        if segment.base_offset < mark.base_offset:
            break
        appended += segment.size
    # Less than nothing where the log was cut, or its segments were deleted or compacted.
    return max(appended, 0)
