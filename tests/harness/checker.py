"""Searches a history of transactions for anomalies, as Jepsen's Kafka workload does.

Pure: it turns a list of operations into a list of anomalies. The order of the list has no meaning.
The checks assume only what Kafka guarantees:

- A partition is a log: an offset always holds the same value, and a value has one offset.
- A transaction is visible as a whole or not at all, but not at one moment: its partitions may
  become visible one after the other. A poll may lack records that it will return later.
- An offset that no reader returned may hold a marker or a record of an aborted transaction.
- An unknown outcome (INFO) may turn out either way, but only one way.

The checks find more the more readers see: a reader must read each partition from its start, and the
last `Poll.ends` must confirm that nothing is left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from harness.history import Assign, Operation, Outcome, Poll, Send

_NEVER = -1


class Kind(StrEnum):
    """One name per anomaly."""

    LOST_WRITE = "lost write"
    ABORTED_READ = "aborted read"
    TORN_TRANSACTION = "torn transaction"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSET = "inconsistent offset"
    UNWRITTEN_VALUE = "unwritten value"
    OWN_UNCOMMITTED_READ = "own uncommitted read"
    CIRCULAR_READ = "circular read"
    CONSUMED_TWICE = "consumed twice"
    INTERNAL_NONMONOTONIC_POLL = "internal nonmonotonic poll"
    INTERNAL_NONMONOTONIC_SEND = "internal nonmonotonic send"
    INTERNAL_POLL_SKIP = "internal poll skip"
    NONMONOTONIC_POLL = "nonmonotonic poll"
    NONMONOTONIC_SEND = "nonmonotonic send"
    POLL_SKIP = "poll skip"


class Anomaly(NamedTuple):
    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Facts:
    """The facts about the logs that follow from all operations. Built once, then only read."""

    def __init__(self, history: Iterable[Operation]) -> None:
        self.history = sorted(history, key=lambda operation: operation.begin_ns)
        self.writers: dict[str, Operation] = {}
        #: By partition and offset: every value that a client saw or was acknowledged there.
        self.values: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: By value: its (partition, offset) pairs. More than one is a duplicate.
        self.places: dict[str, set[tuple[str, int]]] = defaultdict(set)
        #: By value: when the first committed reader had returned it.
        self.visible_since_ns: dict[str, int] = {}
        #: By partition: committed readers have read everything below this offset.
        self.covered: dict[str, int] = defaultdict(int)
        #: By partition: the start of the last operation that read to the end of the log.
        self.ends_since_ns: dict[str, int] = defaultdict(lambda: _NEVER)
        for operation in self.history:
            self._learn(operation)
        #: By partition: the offsets that a committed reader, or any reader, must not skip.
        self.committed_order = self._order(committed=True)
        self.whole_order = self._order(committed=False)

    def _learn(self, operation: Operation) -> None:
        for step in operation.steps:
            match step:
                case Send(partition, value, offset):
                    self.writers[value] = operation
                    if offset is not None:
                        self._place(partition, offset, value)
                case Poll():
                    self._learn_poll(operation, step)
                case Assign():
                    pass

    def _learn_poll(self, operation: Operation, poll: Poll) -> None:
        # A process that died saw its records at or after the start of its operation.
        seen_ns = operation.begin_ns if operation.end_ns is None else operation.end_ns
        for partition, records in poll.seen.items():
            for offset, value in ((record.offset, record.value) for record in records):
                self._place(partition, offset, value)
                if poll.committed:
                    known_ns = self.visible_since_ns.get(value, seen_ns)
                    self.visible_since_ns[value] = min(known_ns, seen_ns)
                    self.covered[partition] = max(self.covered[partition], offset + 1)
        if poll.committed:
            for partition, end in poll.ends.items():
                self.covered[partition] = max(self.covered[partition], end)
                since_ns = max(self.ends_since_ns[partition], operation.begin_ns)
                self.ends_since_ns[partition] = since_ns

    def _place(self, partition: str, offset: int, value: str) -> None:
        self.values[partition][offset].add(value)
        self.places[value].add((partition, offset))

    def _order(self, *, committed: bool) -> dict[str, list[int]]:
        visible = self.visible_since_ns
        return {
            partition: sorted(
                offset
                for offset, values in by_offset.items()
                if not committed or any(value in visible for value in values)
            )
            for partition, by_offset in self.values.items()
        }

    def offset_of(self, send: Send) -> int | None:
        """Return the offset that the sender or a reader was given."""
        if send.offset is not None:
            return send.offset
        found = [offset for where, offset in self.places[send.value] if where == send.partition]
        return min(found, default=None)

    def is_missing(self, send: Send, committed_ns: int | None) -> bool:
        """Whether no committed reader returned a value that it should have.

        Its transaction is known to be committed at `committed_ns`."""
        if send.value in self.visible_since_ns:
            return False
        if send.offset is not None and send.offset < self.covered[send.partition]:
            return True
        return committed_ns is not None and committed_ns < self.ends_since_ns[send.partition]


def check(history: Iterable[Operation]) -> list[Anomaly]:
    """Return all anomalies of a history."""
    facts = Facts(history)
    return [anomaly for search in _SEARCHES for anomaly in search(facts)]


def explain(anomalies: Sequence[Anomaly], lines_max: int = 20) -> str:
    """Return the anomalies as text for a failing test."""
    lines = [str(anomaly) for anomaly in anomalies[:lines_max]]
    if len(anomalies) > lines_max:
        lines.append(f"... and {len(anomalies) - lines_max} more")
    return "\n".join(lines)


# The log


def _inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    for partition, by_offset in facts.values.items():
        for offset, values in by_offset.items():
            if len(values) > 1:
                detail = f"{partition} has {sorted(values)} at offset {offset}"
                yield Anomaly(Kind.INCONSISTENT_OFFSET, detail)


def _duplicates(facts: Facts) -> Iterator[Anomaly]:
    for value, places in facts.places.items():
        if len(places) > 1:
            yield Anomaly(Kind.DUPLICATE, f"{value} is at {sorted(places)}")


class _Sent(NamedTuple):
    """The records that one operation sent to one partition, in order.

    `first` was not appended before the operation began, nor `last_acknowledged` (if any) after it
    ended.
    """

    operation: Operation
    offsets: list[int]
    last_acknowledged: int

    @property
    def first(self) -> int:
        return min(self.offsets)


def _nonmonotonic_sends(facts: Facts) -> Iterator[Anomaly]:
    """Find records that were sent after another operation ended but have lower offsets."""
    by_partition: dict[str, list[_Sent]] = defaultdict(list)
    for operation in facts.history:
        for partition, sent in _sent_by(facts, operation).items():
            by_partition[partition].append(sent)
            for first, second in pairwise(sent.offsets):
                if second <= first:
                    detail = f"{operation.name} sent to {partition} at {first}, then at {second}"
                    yield Anomaly(Kind.INTERNAL_NONMONOTONIC_SEND, detail)
    for partition, sends in by_partition.items():
        yield from _sends_before_earlier(partition, sends)


def _sent_by(facts: Facts, operation: Operation) -> dict[str, _Sent]:
    offsets: dict[str, list[int]] = defaultdict(list)
    acknowledged: dict[str, int] = defaultdict(lambda: _NEVER)
    for send in operation.sends():
        offset = facts.offset_of(send)
        if offset is not None:
            offsets[send.partition].append(offset)
            if send.offset is not None or operation.outcome is Outcome.OK:
                acknowledged[send.partition] = max(acknowledged[send.partition], offset)
    return {
        partition: _Sent(operation, found, acknowledged[partition])
        for partition, found in offsets.items()
    }


def _sends_before_earlier(partition: str, sends: list[_Sent]) -> Iterator[Anomaly]:
    """Sort `sends` by the start of their operations."""
    running: list[tuple[int, int, str]] = []
    last = (_NEVER, "")
    for sent in sends:
        operation = sent.operation
        while running and running[0][0] < operation.begin_ns:
            _, offset, name = heappop(running)
            last = max(last, (offset, name))
        if sent.first < last[0]:
            detail = f"{operation.name} sent to {partition} at {sent.first}, after {last[1]}"
            yield Anomaly(Kind.NONMONOTONIC_SEND, f"{detail} had at {last[0]}")
        if operation.end_ns is not None:
            heappush(running, (operation.end_ns, sent.last_acknowledged, operation.name))


# Transactions


def _lost_writes(facts: Facts) -> Iterator[Anomaly]:
    for operation in facts.history:
        if operation.outcome is Outcome.OK:
            for send in operation.sends():
                if facts.is_missing(send, operation.end_ns):
                    detail = f"no reader saw {send.value} of {operation.name} in {send.partition}"
                    yield Anomaly(Kind.LOST_WRITE, detail)


def _torn_transactions(facts: Facts) -> Iterator[Anomaly]:
    for operation in facts.history:
        sends = operation.sends()
        since = [facts.visible_since_ns.get(send.value) for send in sends]
        known = [time_ns for time_ns in since if time_ns is not None]
        if known:
            missing = [send.value for send in sends if facts.is_missing(send, min(known))]
            if missing:
                detail = f"{operation.name} is visible except {missing}"
                yield Anomaly(Kind.TORN_TRANSACTION, detail)


def _bad_reads(facts: Facts) -> Iterator[Anomaly]:
    for operation in facts.history:
        own = {send.value for send in operation.sends()}
        for partition, value, committed in _reads(operation):
            writer = facts.writers.get(value)
            what = f"{operation.name} saw {value} in {partition}"
            if writer is None:
                yield Anomaly(Kind.UNWRITTEN_VALUE, f"{what}, which was never sent")
            elif committed and writer.outcome is Outcome.FAIL:
                yield Anomaly(Kind.ABORTED_READ, f"{what}, which {writer.name} aborted")
            elif committed and value in own:
                yield Anomaly(Kind.OWN_UNCOMMITTED_READ, f"{what} before its own commit")


def _reads(operation: Operation) -> Iterator[tuple[str, str, bool]]:
    for poll in operation.polls():
        for partition, records in poll.seen.items():
            for record in records:
                yield partition, record.value, poll.committed


def _circular_reads(facts: Facts) -> Iterator[Anomaly]:
    """Find cycles: a committed transaction comes after those whose records it read."""
    graph: dict[str, set[str]] = defaultdict(set)
    for operation in facts.history:
        if operation.outcome is Outcome.OK:
            for _, value, committed in _reads(operation):
                writer = facts.writers.get(value)
                if committed and writer is not None and writer is not operation:
                    graph[operation.name].add(writer.name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield Anomaly(Kind.CIRCULAR_READ, " is read by ".join(error.args[1]))


def _consumed_twice(facts: Facts) -> Iterator[Anomaly]:
    consumers: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for operation in facts.history:
        if operation.outcome is not Outcome.OK:
            continue
        for poll in operation.polls():
            if poll.group is not None:
                for partition, records in poll.seen.items():
                    for record in records:
                        place = (poll.group, partition, record.offset)
                        consumers[place].append(operation.name)
    for (group, partition, offset), names in consumers.items():
        if len(set(names)) > 1:
            detail = f"{names} all committed {partition} at {offset} for group {group}"
            yield Anomaly(Kind.CONSUMED_TWICE, detail)


# Readers


def _unsteady_polls(facts: Facts) -> Iterator[Anomaly]:
    by_process: dict[str, list[Operation]] = defaultdict(list)
    for operation in facts.history:
        by_process[operation.process].append(operation)
    for operations in by_process.values():
        reader = _Reader(facts)
        for operation in operations:
            yield from reader.check(operation)


class _Reader:
    """The reads of one process across its polls."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        #: By partition: the last offset and the operation that returned it.
        self._last: dict[str, tuple[int, Operation]] = {}

    def check(self, operation: Operation) -> Iterator[Anomaly]:
        touched: set[str] = set()
        for step in operation.steps:
            match step:
                case Assign(partitions):
                    self._forget(partitions)
                case Poll():
                    touched.update(step.seen)
                    yield from self._poll(operation, step)
                case Send():
                    pass
        if operation.outcome is not Outcome.OK:
            # A reader that aborts its transaction may continue after its records, or reread them.
            self._forget(touched)

    def _forget(self, partitions: Iterable[str]) -> None:
        for partition in partitions:
            self._last.pop(partition, None)

    def _poll(self, operation: Operation, poll: Poll) -> Iterator[Anomaly]:
        facts = self._facts
        order = facts.committed_order if poll.committed else facts.whole_order
        for partition, records in poll.seen.items():
            for record in records:
                last = self._last.get(partition)
                self._last[partition] = (record.offset, operation)
                if last is not None:
                    where = f"{operation.name} in {partition}"
                    is_internal = last[1] is operation
                    yield from _step(
                        where, last[0], record.offset, order[partition], is_internal=is_internal
                    )


def _step(
    where: str, last: int, offset: int, order: list[int], *, is_internal: bool
) -> Iterator[Anomaly]:
    if offset <= last:
        kind = Kind.INTERNAL_NONMONOTONIC_POLL if is_internal else Kind.NONMONOTONIC_POLL
        yield Anomaly(kind, f"{where}: offset {offset} came after {last}")
        return
    skipped = order[bisect_right(order, last) : bisect_left(order, offset)]
    if skipped:
        kind = Kind.INTERNAL_POLL_SKIP if is_internal else Kind.POLL_SKIP
        yield Anomaly(kind, f"{where}: offset {last} is followed by {offset}, {skipped} is skipped")


_SEARCHES = (
    _lost_writes,
    _bad_reads,
    _torn_transactions,
    _inconsistent_offsets,
    _duplicates,
    _nonmonotonic_sends,
    _unsteady_polls,
    _consumed_twice,
    _circular_reads,
)
