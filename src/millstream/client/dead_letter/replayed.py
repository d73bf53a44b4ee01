"""Which letters were replayed: the records of `<topic>.dlq.replayed`. Pure.

Each record is JSON, written in one transaction with the letters that it lists:

    {"topic_id": "...", "partition": 0, "ranges": [[17, 20], [25, 26]]}

Ranges are `[start, end)`. A record with another topic id belongs to a deleted topic of the same
name.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable

from millstream.client.dead_letter.letter import LetterId


def replay_topic(dead_letter_topic: str) -> str:
    """Return the name of the topic that lists the replayed letters."""
    return f"{dead_letter_topic}.replayed"


class ReplayedLetters:
    """The letters of one dead-letter topic that were replayed."""

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self._offsets: dict[int, set[int]] = defaultdict(set)

    def __contains__(self, letter_id: LetterId) -> bool:
        return letter_id.offset in self._offsets[letter_id.partition]

    def add(self, letters: Iterable[LetterId]) -> None:
        """Add these letters."""
        for letter_id in letters:
            self._offsets[letter_id.partition].add(letter_id.offset)

    def read(self, value: bytes) -> None:
        """Add the letters that a record lists."""
        entry = json.loads(value)
        if entry["topic_id"] == self._topic_id:
            for start, end in entry["ranges"]:
                self._offsets[entry["partition"]].update(range(start, end))

    def records(self, letters: Iterable[LetterId]) -> list[bytes]:
        """Return the records that list these letters."""
        by_partition: dict[int, list[int]] = defaultdict(list)
        for letter_id in sorted(letters):
            by_partition[letter_id.partition].append(letter_id.offset)
        return [
            json.dumps(
                {"topic_id": self._topic_id, "partition": partition, "ranges": _ranges(offsets)}
            ).encode()
            for partition, offsets in by_partition.items()
        ]


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    """Return ascending offsets as ranges."""
    runs = itertools.groupby(enumerate(offsets), lambda each: each[1] - each[0])
    found = []
    for _, run in runs:
        listed = [offset for _, offset in run]
        found.append((listed[0], listed[-1] + 1))
    return found
