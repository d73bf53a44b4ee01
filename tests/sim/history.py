"""What clients of one run did and saw, and whether that can be.

For every partition, with the log as it was read at the end:

    kept         what was acknowledged is there, at the offset that was told
    once         no value is there twice
    in order     the values of each producer are there in the order in which it sent them
    seen         every record that a consumer saw is there at that offset, and it skipped none
    never back   while a leader's epoch lasts, no reader is told a smaller high watermark
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Value(NamedTuple):
    """What a record holds: which producer's how-manieth it is."""

    producer: int
    number: int

    def encode(self) -> bytes:
        return b"%d:%d" % self

    @classmethod
    def decode(cls, data: bytes) -> Value:
        producer, _, number = data.partition(b":")
        return cls(int(producer), int(number))


class Acknowledged(NamedTuple):
    value: Value
    offset: int


class Seen(NamedTuple):
    """A record as a consumer got it."""

    offset: int
    value: Value


@dataclass(slots=True)
class PartitionHistory:
    acknowledged: list[Acknowledged] = field(default_factory=list)
    #: What each consumer saw, in order.
    seen: dict[int, list[Seen]] = field(default_factory=dict)
    #: The log at the end, from the first offset on.
    final: list[Seen] = field(default_factory=list)


class History:
    """Filled by the clients while a run lasts."""

    def __init__(self, partition_count: int) -> None:
        self.partitions = [PartitionHistory() for _ in range(partition_count)]
        #: What was wrong at once.
        self.violations: list[str] = []
        #: Whether the logs could be read at the end.
        self.is_complete = False

    def violated(self, what: str) -> None:
        self.violations.append(what)

    def check(self) -> list[str]:
        """All that is wrong with the run."""
        found = list(self.violations)
        if not self.is_complete:
            return found
        for number, partition in enumerate(self.partitions):
            found += [f"partition {number}: {what}" for what in check_partition(partition)]
        return found


def check_partition(partition: PartitionHistory) -> list[str]:
    found = []
    offsets = [record.offset for record in partition.final]
    if offsets != list(range(len(offsets))):
        found.append(f"offsets at the end are not a sequence from 0: {offsets}")
    at = {record.offset: record.value for record in partition.final}
    for value, offset in partition.acknowledged:
        if at.get(offset) != value:
            found.append(f"{value} was acknowledged at {offset}, where {at.get(offset)} is now")
    last: dict[int, int] = {}
    for offset, value in partition.final:
        if value.number <= last.get(value.producer, -1):
            found.append(f"{value} at {offset} comes after number {last[value.producer]}")
        last[value.producer] = value.number
    for consumer, seen in partition.seen.items():
        found += [f"consumer {consumer}: {what}" for what in _check_seen(seen, at)]
    return found


def _check_seen(seen: list[Seen], at: dict[int, Value]) -> list[str]:
    found = []
    for expected, (offset, value) in enumerate(seen):
        if offset != expected:
            found.append(f"saw {offset} where {expected} was next")
            break
        if at.get(offset) != value:
            found.append(f"saw {value} at {offset}, where {at.get(offset)} is now")
    return found
