"""Which letters were replayed: records of `<topic>.dlq.replayed`. Pure.

Each is JSON, written in one transaction with the letters it tells of:

    {"topic_id": "...", "partition": 0, "ranges": [[17, 20], [25, 26]]}

Ranges are `[start, end)`. Records of another topic id speak of a topic that was deleted, whose name
and offsets are in use again.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable

from millstream.client.dead_letter.letter import LetterId


def replay_topic(dead_letter_topic: str) -> str:
    return f"{dead_letter_topic}.replayed"


class ReplayedLetters:
    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self._offsets: dict[int, set[int]] = defaultdict(set)

    def __contains__(self, place: LetterId) -> bool:
        return place.offset in self._offsets[place.partition]

    def add(self, places: Iterable[LetterId]) -> None:
        for place in places:
            self._offsets[place.partition].add(place.offset)

    def read(self, value: bytes) -> None:
        """One record of the replayed."""
        entry = json.loads(value)
        if entry["topic_id"] == self._topic_id:
            for start, end in entry["ranges"]:
                self._offsets[entry["partition"]].update(range(start, end))

    def records(self, places: Iterable[LetterId]) -> list[bytes]:
        """What is to be written about these."""
        by_partition: dict[int, list[int]] = defaultdict(list)
        for place in sorted(places):
            by_partition[place.partition].append(place.offset)
        return [
            json.dumps(
                {"topic_id": self._topic_id, "partition": partition, "ranges": _ranges(offsets)}
            ).encode()
            for partition, offsets in by_partition.items()
        ]


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    """Neighbours together; `offsets` ascend."""
    runs = itertools.groupby(enumerate(offsets), lambda each: each[1] - each[0])
    found = []
    for _, run in runs:
        listed = [offset for _, offset in run]
        found.append((listed[0], listed[-1] + 1))
    return found
