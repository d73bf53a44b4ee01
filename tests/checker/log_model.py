"""A tiny transactional broker for tests of the checker.

It records histories that the checker must accept. With a `Fault` it records histories that the
checker must reject. It is single-threaded: its methods are the operations of clients, one after
the other. An operation that is not possible is ignored, so any sequence of calls is a valid run.
Time is the number of events so far.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from harness.history import Assign, Operation, Outcome, Poll, Seen, Send, Step

PARTITIONS = ("a-0", "a-1", "b-0")
GROUP = "movers"


class Fault(StrEnum):
    """One mistake that a broker could make."""

    SHOWS_OPEN_TRANSACTIONS = "readers are not held back by open transactions"
    SHOWS_ABORTED = "the list of aborted transactions is forgotten"
    FORGETS_A_MARKER = "a commit reaches all partitions but one, which gets an abort"
    FORGETS_A_RECORD = "an acknowledged record is gone"
    REPEATS_A_RECORD = "a retried record is appended again"
    REUSES_AN_OFFSET = "an offset is given twice"
    REWINDS_READERS = "readers get again what they had"
    SKIPS_FOR_ONE_READER = "one reader misses a record"
    FORGETS_GROUP_OFFSETS = "what a transaction committed for a group is gone"


class Fate(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    process: str
    number: int
    begin_ns: int
    steps: list[Step] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    fate: dict[str, Fate] = field(default_factory=dict)


@dataclass(slots=True)
class Slot:
    """The content of an offset: a record, or a marker if `value` is None."""

    offset: int
    value: str | None
    transaction: Transaction


class LogModel:
    def __init__(self, fault: Fault | None = None, chance: random.Random | None = None) -> None:
        self.history: list[Operation] = []
        self._fault = fault
        self._chance = chance or random.Random(0)
        self._now_ns = 0
        self._values = 0
        self._logs: dict[str, list[Slot]] = {name: [] for name in PARTITIONS}
        self._open: dict[str, Transaction] = {}
        self._numbers: dict[str, int] = defaultdict(int)
        self._positions: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._group: dict[str, int] = defaultdict(int)

    def _tick(self) -> int:
        self._now_ns += 1
        return self._now_ns

    # Writers

    def begin(self, process: str) -> None:
        if process not in self._open:
            self._numbers[process] += 1
            self._open[process] = Transaction(process, self._numbers[process], self._tick())

    def send(self, process: str, partition: str, *, knows_offset: bool) -> None:
        """Send a record. `knows_offset`: whether the sender learns the offset."""
        transaction = self._open.get(process)
        if transaction is None:
            return
        value = f"v{self._values}"
        self._values += 1
        log = self._logs[partition]
        offset = log[-1].offset + 1 if log else 0
        if self._strikes(Fault.REUSES_AN_OFFSET) and log:
            offset -= 1
        transaction.fate.setdefault(partition, Fate.OPEN)
        transaction.steps.append(Send(partition, value, offset if knows_offset else None))
        if not self._strikes(Fault.FORGETS_A_RECORD):
            log.append(Slot(offset, value, transaction))
        if self._strikes(Fault.REPEATS_A_RECORD):
            log.append(Slot(offset + 1, value, transaction))

    def consume(self, process: str, partition: str, count: int) -> None:
        """Read in the transaction, for the group; no other member may own the partition."""
        transaction = self._open.get(process)
        if transaction is None or self._is_held(partition):
            return
        start = self._group[partition]
        found, position = self._read(partition, start, count, committed=True)
        transaction.positions[partition] = position
        transaction.steps.append(Assign([partition]))
        transaction.steps.append(Poll({partition: found}, group=GROUP))

    def _is_held(self, partition: str) -> bool:
        return any(partition in other.positions for other in self._open.values())

    def end(self, process: str, *, commit: bool, known: bool) -> None:
        """End the transaction. `known`: whether the process learns the outcome."""
        transaction = self._open.pop(process, None)
        if transaction is None:
            return
        for partition in transaction.fate:
            committed = commit and not self._strikes(Fault.FORGETS_A_MARKER)
            transaction.fate[partition] = Fate.COMMITTED if committed else Fate.ABORTED
            log = self._logs[partition]
            log.append(Slot(log[-1].offset + 1 if log else 0, None, transaction))
        if commit and not self._strikes(Fault.FORGETS_GROUP_OFFSETS):
            self._group.update(transaction.positions)
        outcome = (Outcome.OK if commit else Outcome.FAIL) if known else Outcome.INFO
        self._record(transaction, outcome, self._tick() if known else None)

    def _record(self, transaction: Transaction, outcome: Outcome, end_ns: int | None) -> None:
        steps: list[Step] = list(transaction.steps)
        if end_ns is None:
            # A dying process records the records that it was about to send, and no outcome.
            sends = [step for step in steps if isinstance(step, Send)]
            steps = [Send(send.partition, send.value) for send in sends]
        self.history.append(
            Operation(
                transaction.process,
                transaction.number,
                outcome,
                transaction.begin_ns,
                end_ns,
                steps,
            )
        )

    # Readers

    def poll(self, process: str, count: int, *, committed: bool) -> None:
        """Read the next records of every partition."""
        begin_ns = self._tick()
        seen: dict[str, list[Seen]] = {}
        positions = self._positions[process]
        for partition in PARTITIONS:
            found, position = self._read(
                partition, positions[partition], count, committed=committed
            )
            if self._strikes(Fault.REWINDS_READERS):
                position = positions[partition]
            positions[partition] = position
            if found:
                seen[partition] = found
        self._add_poll(process, begin_ns, Poll(seen, committed=committed))

    def _add_poll(self, process: str, begin_ns: int, *steps: Step) -> None:
        self._numbers[process] += 1
        number = self._numbers[process]
        end_ns = self._tick()
        self.history.append(Operation(process, number, Outcome.OK, begin_ns, end_ns, list(steps)))

    def seek(self, process: str, partition: str, offset: int) -> None:
        begin_ns = self._tick()
        self._positions[process][partition] = offset
        self._add_poll(process, begin_ns, Assign([partition]))

    def _read(
        self, partition: str, start: int, count: int, *, committed: bool
    ) -> tuple[list[Seen], int]:
        found: list[Seen] = []
        position = start
        for slot in self._logs[partition]:
            if slot.offset < start:
                continue
            if len(found) == count or (committed and self._is_unstable(slot, partition)):
                break
            position = slot.offset + 1
            if slot.value is None or (committed and not self._is_shown(slot, partition)):
                continue
            if not self._strikes(Fault.SKIPS_FOR_ONE_READER):
                found.append(Seen(slot.offset, slot.value))
        return found, position

    def _is_unstable(self, slot: Slot, partition: str) -> bool:
        if self._fault is Fault.SHOWS_OPEN_TRANSACTIONS:
            return False
        # Records after the first record of an open transaction wait until its marker.
        return slot.transaction.fate.get(partition) is Fate.OPEN

    def _is_shown(self, slot: Slot, partition: str) -> bool:
        if self._fault in (Fault.SHOWS_ABORTED, Fault.SHOWS_OPEN_TRANSACTIONS):
            return True
        return slot.transaction.fate[partition] is Fate.COMMITTED

    # The end

    def finish(self) -> None:
        """Let all open transactions time out; then read everything."""
        for process in list(self._open):
            self.end(process, commit=False, known=False)
        fault, self._fault = self._fault, self._fault_of_the_last_reader()
        begin_ns = self._tick()
        seen, ends = {}, {}
        for partition in PARTITIONS:
            seen[partition], ends[partition] = self._read(partition, 0, 1 << 30, committed=True)
        self._fault = fault
        self._add_poll("last", begin_ns, Poll(seen))
        self._add_poll("last", self._tick(), Poll({}, ends=ends))

    def _fault_of_the_last_reader(self) -> Fault | None:
        return Fault.SHOWS_ABORTED if self._fault is Fault.SHOWS_ABORTED else None

    def _strikes(self, fault: Fault) -> bool:
        return self._fault is fault and self._chance.random() < 0.3
