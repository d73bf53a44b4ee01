"""The messages that a worker holds: which may start, which partitions are full, what may be
committed. Pure: the clock is the caller's, and so is the lock.

    waiting (not due) -> ready -> running -> released -> finished -> taken (to be committed)
                 careful: unnoted -> ready

A lane is what has to happen in order: the messages of a key, or one message by itself. Its first
entry waits, is ready or runs; the others follow once it is released. A partition's offset moves
up to its lowest unfinished message, never beyond. Finished messages beyond that are told to a
successor by the offset's note, as far as the note has room.

The window limits messages that could run, and bytes. Messages that wait for a time, and those
behind them in their lane, count as bytes only: a long delay does not stop the reading.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from millstream.client.record import Partition, Record
from millstream.client.worker.header import Origin, Output
from millstream.client.worker.offset_metadata import Note, fitting

#: What a message costs beside its key and value.
_ENTRY_BYTES: Final = 512


class Entry:
    """One message. `attempts` counts those that were begun, and counted."""

    __slots__ = (
        "attempts",
        "deaths",
        "due",
        "is_careful",
        "is_dead",
        "is_gone",
        "is_parked",
        "lane",
        "offset",
        "origin",
        "outputs",
        "partition",
        "record",
        "size",
    )

    def __init__(
        self, partition: Partition, record: Record, origin: Origin, lane: object, due: float = 0.0
    ) -> None:
        self.record = record
        self.origin = origin
        self.partition = partition
        self.offset = record.offset
        #: None for one that is in nobody's order.
        self.lane = lane
        self.due = due
        self.attempts = origin.attempts
        #: Processes that died while this message was in progress.
        self.deaths = 0
        #: It starts only after the partition's note names it.
        self.is_careful = False
        #: Its output is its dead letter.
        self.is_dead = False
        #: Its partition was taken away.
        self.is_gone = False
        #: It is due later than its wait on the board ends: then it is moved on.
        self.is_parked = False
        self.outputs: list[Output] = []
        self.size = _ENTRY_BYTES + len(record.raw_key or b"") + len(record.raw_value or b"")


class Taken(NamedTuple):
    """Messages of a partition that have finished since the last time, and its state after them:
    the offset to commit, unfinished messages from there on, and the end of what that says."""

    entries: list[Entry]
    offset: int
    unfinished: tuple[int, ...]
    end: int


class Lane:
    """Entries in their order; the first is the one that waits, is ready or runs."""

    __slots__ = ("entries", "is_waiting")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.is_waiting = False


class Ledger:
    """What is unfinished in one partition."""

    __slots__ = (
        "_inherited",
        "_inherited_end",
        "bytes",
        "end",
        "fresh",
        "has_changed",
        "idle",
        "unfinished",
    )

    def __init__(self, offset: int, note: Note) -> None:
        #: In the order of offsets.
        self.unfinished: dict[int, Entry] = {}
        #: Finished, and not taken yet.
        self.fresh: list[Entry] = []
        #: After the last message that was read.
        self.end = offset
        #: The former worker has finished everything before that end but these.
        self._inherited = dict.fromkeys(note.unfinished)
        self._inherited_end = note.end
        self.bytes = 0
        #: How many wait for a time, or for one that does.
        self.idle = 0
        self.has_changed = False

    def read_to(self, offset: int) -> None:
        """The message there was read; if it is not added, nothing is to be done about it."""
        self.end = offset + 1
        self.has_changed = True

    def is_finished(self, offset: int) -> bool:
        """Whether the former worker has finished it."""
        return offset < self._inherited_end and offset not in self._inherited

    def taken(self) -> Taken:
        offset = next(iter(self.unfinished), self.end)
        left = (each for each in self._inherited if each >= self.end)
        end = max(self.end, self._inherited_end)
        unfinished, end = fitting(offset, itertools.chain(self.unfinished, left), end)
        entries = [entry for entry in self.fresh if entry.offset < end]
        self.fresh = [entry for entry in self.fresh if entry.offset >= end]
        self.has_changed = False
        for entry in entries:
            self.bytes -= entry.size
        return Taken(entries, offset, unfinished, end)


class Board:
    """`window` is per partition, `window_bytes` of all partitions together."""

    def __init__(self, window: int, window_bytes: int) -> None:
        self._window = window
        self._window_bytes = window_bytes
        self._ledgers: dict[Partition, Ledger] = {}
        self._lanes: dict[object, Lane] = {}
        self._ready: deque[Entry] = deque()
        self._waiting: list[tuple[float, int, Entry]] = []
        self._numbers = itertools.count()
        #: Nothing of these starts any more.
        self._held: set[Partition] = set()
        self.running: dict[Entry, None] = {}
        #: Careful entries that could start once a note names them.
        self.unnoted: deque[Entry] = deque()
        #: While set, only this entry starts; `is_quiet` without one: nothing does.
        self.alone: Entry | None = None
        self.is_quiet = False

    def __len__(self) -> int:
        return sum(len(ledger.unfinished) + len(ledger.fresh) for ledger in self._ledgers.values())

    @property
    def bytes(self) -> int:
        """What is held in memory, about."""
        return sum(ledger.bytes for ledger in self._ledgers.values())

    def partitions(self) -> dict[Partition, None]:
        """Those of which anything was read."""
        return dict.fromkeys(self._ledgers)

    @property
    def ready_count(self) -> int:
        """At least as many as may start now."""
        return len(self._ready)

    def open(self, partition: Partition, offset: int, note: Note | None = None) -> None:
        """Messages of it from this offset on may be added from now on."""
        self._ledgers[partition] = Ledger(offset, note or Note())

    def ledger(self, partition: Partition) -> Ledger | None:
        """The partition's, if it is open."""
        return self._ledgers.get(partition)

    def add(self, entry: Entry, now: float) -> None:
        """Read, in the order of offsets."""
        ledger = self.add_released(entry)
        if entry.lane is not None:
            lane = self._lanes.setdefault(entry.lane, Lane())
            lane.entries.append(entry)
            if len(lane.entries) > 1:
                ledger.idle += lane.is_waiting
                return
        self._offer(entry, now)

    def add_released(self, entry: Entry) -> Ledger:
        """Read, and not to be run: it only has to be finished."""
        ledger = self._ledgers[entry.partition]
        ledger.read_to(entry.offset)
        ledger.unfinished[entry.offset] = entry
        ledger.bytes += entry.size
        return ledger

    def wake(self, now: float) -> list[Entry]:
        """Make ready what is due. Returns parked messages whose wait has ended, which are not."""
        parked = []
        while self._waiting and self._waiting[0][0] <= now:
            entry = heapq.heappop(self._waiting)[2]
            if entry.is_gone:
                continue
            self._set_waiting(entry, is_waiting=False)
            if entry.is_parked:
                parked.append(entry)
            else:
                self._enqueue(entry)
        return parked

    def is_crowded(self, partition: Partition) -> bool:
        """Whether so many messages of it wait that others should wait elsewhere."""
        ledger = self._ledgers[partition]
        return ledger.idle >= self._window or ledger.bytes * 2 >= self._share

    def make_ready(self, entry: Entry) -> None:
        """The note names it now."""
        self._ready.append(entry)

    def start(self) -> Entry | None:
        """The next that may run; it runs."""
        if self.is_quiet:
            return self._start_alone()
        while self._ready:
            entry = self._ready.popleft()
            if entry.is_gone or entry.partition in self._held:
                continue
            self.running[entry] = None
            return entry
        return None

    def postpone(self, entry: Entry, due: float, now: float) -> None:
        """It is to run again; its lane waits for it."""
        self.running.pop(entry, None)
        if not entry.is_gone:
            entry.due = due
            self._offer(entry, now)

    def release(self, entry: Entry, now: float) -> None:
        """It will not run again: its lane goes on."""
        self.running.pop(entry, None)
        if entry.is_gone or entry.lane is None:
            return
        lane = self._lanes[entry.lane]
        lane.entries.popleft()
        if lane.entries:
            self._offer(lane.entries[0], now)
        else:
            del self._lanes[entry.lane]

    def finish(self, entry: Entry, *, keep: bool) -> None:
        """It is done with; `keep` if whoever takes it has still to send its output."""
        ledger = self._ledgers.get(entry.partition)
        if entry.is_gone or ledger is None:
            return
        del ledger.unfinished[entry.offset]
        ledger.has_changed = True
        if keep:
            grown = sum(output.size for output in entry.outputs)
            entry.size += grown
            ledger.bytes += grown
            ledger.fresh.append(entry)
        else:
            ledger.bytes -= entry.size

    def take(self, also: Iterable[Partition] = ()) -> dict[Partition, Taken]:
        """What has changed since the last time, by partition; and `also` these partitions."""
        chosen = dict.fromkeys(also)
        return {
            partition: ledger.taken()
            for partition, ledger in self._ledgers.items()
            if ledger.has_changed or partition in chosen
        }

    def hold(self, partitions: Iterable[Partition]) -> None:
        self._held.update(partitions)

    def drop(self, partitions: Iterable[Partition]) -> None:
        """They are somebody else's now."""
        for partition in partitions:
            self._held.discard(partition)
            ledger = self._ledgers.pop(partition, None)
            for entry in () if ledger is None else ledger.unfinished.values():
                entry.is_gone = True
                if entry.lane is not None:
                    self._lanes.pop(entry.lane, None)
        self.unnoted = deque(entry for entry in self.unnoted if not entry.is_gone)

    def full(self) -> set[Partition]:
        """Partitions of which no more should be read."""
        share = self._share
        return {
            partition
            for partition, ledger in self._ledgers.items()
            if len(ledger.unfinished) - ledger.idle >= self._window or ledger.bytes >= share
        }

    def roomy(self) -> set[Partition]:
        """Partitions of which more can be read, if they were full before."""
        share = self._share
        return {
            partition
            for partition, ledger in self._ledgers.items()
            if (len(ledger.unfinished) - ledger.idle) * 2 <= self._window
            and ledger.bytes * 2 <= share
        }

    @property
    def _share(self) -> float:
        """Bytes that a partition may hold."""
        return self._window_bytes / max(1, len(self._ledgers))

    def _start_alone(self) -> Entry | None:
        entry = self.alone
        if entry is None or self.running or entry.is_gone or entry not in self._ready:
            return None
        self._ready.remove(entry)
        if entry.partition in self._held:
            return None
        self.running[entry] = None
        return entry

    def _offer(self, entry: Entry, now: float) -> None:
        if entry.due > now:
            heapq.heappush(self._waiting, (entry.due, next(self._numbers), entry))
            self._set_waiting(entry, is_waiting=True)
        else:
            self._enqueue(entry)

    def _enqueue(self, entry: Entry) -> None:
        (self.unnoted if entry.is_careful else self._ready).append(entry)

    def _set_waiting(self, entry: Entry, *, is_waiting: bool) -> None:
        count = 1
        if entry.lane is not None:
            lane = self._lanes[entry.lane]
            lane.is_waiting = is_waiting
            count = len(lane.entries)
        self._ledgers[entry.partition].idle += count if is_waiting else -count
