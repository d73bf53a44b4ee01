"""Measures how many partitions are not led by their preferred replica. Pure."""

from __future__ import annotations

from collections import Counter

from millstream.metadata.cluster_record import PartitionRecord


class LeaderTally:
    """Counts for each broker the partitions that prefer it, and how many of them others lead."""

    __slots__ = ("_elsewhere", "_preferred")

    def __init__(self) -> None:
        self._preferred: Counter[int] = Counter()
        self._elsewhere: Counter[int] = Counter()

    def add(self, record: PartitionRecord) -> None:
        first = record.replicas[0]
        self._preferred[first] += 1
        self._elsewhere[first] += record.leader != first

    def share(self, broker_id: int) -> float:
        """Return the share of the partitions that prefer a broker which others lead."""
        count = self._preferred[broker_id]
        return self._elsewhere[broker_id] / count if count else 0.0
