"""The messages that a worker holds: which may start, which partitions are full, what may be
committed. Pure: the clock is the caller's, and so is the lock.

    waiting (not due) -> ready -> running -> released -> finished -> taken (to be committed)

A lane is what has to happen in order: the messages of a key, or one message by itself. Its first
entry waits, is ready or runs; the others follow once it is released. A partition's offset moves
only over finished entries: nothing after the lowest unfinished one is ever committed.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from millstream.client.record import Partition, Record
from millstream.client.worker.letter import Origin, Output


class Entry:
    """One message. `attempts` counts those that were begun, and counted."""

    __slots__ = (
        "attempts",
        "due",
        "is_finished",
        "is_gone",
        "lane",
        "offset",
        "origin",
        "outputs",
        "partition",
        "record",
    )

    def __init__(self, record: Record, origin: Origin, lane: object, due: float = 0.0) -> None:
        self.record = record
        self.origin = origin
        self.partition = Partition(record.topic, record.partition)
        self.offset = record.offset
        #: None for one that is in nobody's order.
        self.lane = lane
        self.due = due
        self.attempts = origin.attempts
        self.is_finished = False
        #: Its partition was taken away.
        self.is_gone = False
        self.outputs: list[Output] = []


class Taken(NamedTuple):
    """Finished messages of a partition, and the offset to commit after them."""

    entries: list[Entry]
    offset: int


class Board:
    def __init__(self, window: int) -> None:
        self._window = window
        self._ledgers: dict[Partition, deque[Entry]] = {}
        self._lanes: dict[object, deque[Entry]] = {}
        self._ready: deque[Entry] = deque()
        self._waiting: list[tuple[float, int, Entry]] = []
        self._numbers = itertools.count()
        #: Nothing of these starts any more.
        self._held: set[Partition] = set()
        self.running: set[Entry] = set()

    def __len__(self) -> int:
        return sum(map(len, self._ledgers.values()))

    def partitions(self) -> set[Partition]:
        """Those of which there is anything."""
        return set(self._ledgers)

    @property
    def ready_count(self) -> int:
        """At least as many as may start now."""
        return len(self._ready)

    def add(self, entry: Entry, now: float) -> None:
        """Read, in the order of offsets."""
        self._ledgers.setdefault(entry.partition, deque()).append(entry)
        if entry.is_finished:
            return
        if entry.lane is not None:
            lane = self._lanes.setdefault(entry.lane, deque())
            lane.append(entry)
            if len(lane) > 1:
                return
        self._offer(entry, now)

    def wake(self, now: float) -> int:
        """Make ready what is due; how many that were."""
        count = 0
        while self._waiting and self._waiting[0][0] <= now:
            self._ready.append(heapq.heappop(self._waiting)[2])
            count += 1
        return count

    def start(self) -> Entry | None:
        """The next that may run; it runs."""
        while self._ready:
            entry = self._ready.popleft()
            if entry.is_gone or entry.partition in self._held:
                continue
            self.running.add(entry)
            return entry
        return None

    def postpone(self, entry: Entry, due: float, now: float) -> None:
        """It is to run again; its lane waits for it."""
        self.running.discard(entry)
        if not entry.is_gone:
            entry.due = due
            self._offer(entry, now)

    def release(self, entry: Entry, now: float) -> None:
        """It will not run again: its lane goes on."""
        self.running.discard(entry)
        if entry.is_gone or entry.lane is None:
            return
        lane = self._lanes[entry.lane]
        lane.popleft()
        if lane:
            self._offer(lane[0], now)
        else:
            del self._lanes[entry.lane]

    def take(self) -> dict[Partition, Taken]:
        """What is finished up to the lowest that is not, by partition; it leaves the board."""
        found: dict[Partition, Taken] = {}
        for partition, ledger in self._ledgers.items():
            entries = []
            while ledger and ledger[0].is_finished:
                entries.append(ledger.popleft())
            if entries:
                found[partition] = Taken(entries, entries[-1].offset + 1)
        return found

    def hold(self, partitions: Iterable[Partition]) -> None:
        self._held.update(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """They are somebody else's now."""
        for partition in partitions:
            self._held.discard(partition)
            for entry in self._ledgers.pop(partition, ()):
                entry.is_gone = True
                if entry.lane is not None:
                    self._lanes.pop(entry.lane, None)

    def full(self) -> set[Partition]:
        """Partitions of which no more should be read."""
        return {each for each, ledger in self._ledgers.items() if len(ledger) >= self._window}

    def roomy(self) -> set[Partition]:
        """Partitions of which more can be read, if they were full before."""
        return {each for each, ledger in self._ledgers.items() if len(ledger) * 2 <= self._window}

    def _offer(self, entry: Entry, now: float) -> None:
        if entry.due > now:
            heapq.heappush(self._waiting, (entry.due, next(self._numbers), entry))
        else:
            self._ready.append(entry)
