"""Whether brokers lead the partitions of which they are the first replica. Pure."""

from __future__ import annotations

from collections import Counter

from millstream.metadata.cluster_record import PartitionRecord


class LeaderTally:
    """Counts, over the partitions added, which are not led by their preferred replica."""

    __slots__ = ("_elsewhere", "_preferred")

    def __init__(self) -> None:
        self._preferred: Counter[int] = Counter()
        self._elsewhere: Counter[int] = Counter()

    def add(self, record: PartitionRecord) -> None:
        first = record.replicas[0]
        self._preferred[first] += 1
        self._elsewhere[first] += record.leader != first

    def share(self, broker_id: int) -> float:
        """Of the partitions that a broker should lead, how many others lead."""
        count = self._preferred[broker_id]
        return self._elsewhere[broker_id] / count if count else 0.0
