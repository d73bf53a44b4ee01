"""The operations that clients of a run recorded, and the violations in them.

Owns two histories. Writes and reads are checked by `harness.checker`. Committed offsets are checked
here: a fetch or commit that begins after a response must not return or store a lower offset than
that response. Pure.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from harness.checker import check
from harness.history import Operation, Outcome, Poll, Step


def now_ns() -> int:
    return time.monotonic_ns()


class CommitEvent(NamedTuple):
    """A commit that was acknowledged, or a response with the committed offset."""

    group: str
    partition: str
    offset: int
    begin_ns: int
    end_ns: int
    who: str


class Evidence:
    """The recorded operations of all clients. Many threads add to it; each addition is atomic."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.commits: list[CommitEvent] = []
        #: Errors that an application would see, with the client.
        self.errors: list[str] = []
        #: Violations that clients found themselves.
        self.violations: list[str] = []
        self._numbers: dict[str, int] = defaultdict(int)

    def add(self, process: str, outcome: Outcome, begin_ns: int, steps: list[Step]) -> None:
        """Add an operation that ends now. Each process name belongs to one thread."""
        number = self._numbers[process]
        self._numbers[process] = number + 1
        self.operations.append(Operation(process, number, outcome, begin_ns, now_ns(), steps))

    def judge(self) -> list[str]:
        """Return all violations."""
        found = list(self.violations)
        found += map(str, check(self.operations))
        found += disordered(self.operations)
        found += moved_back(self.commits)
        return found


def disordered(operations: Iterable[Operation]) -> Iterator[str]:
    """Return records of a producer that are not stored in the order in which they were sent."""
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for operation in sorted(operations, key=lambda each: each.begin_ns):
        for send in operation.sends():
            if send.offset is None:
                continue
            before = last.get((operation.process, send.partition))
            if before is not None and before[0] >= send.offset:
                yield (
                    f"order: {operation.process} sent {before[1]} before {send.value} to "
                    f"{send.partition}, but they are at {before[0]} and {send.offset}"
                )
            last[operation.process, send.partition] = (send.offset, send.value)


def moved_back(events: Iterable[CommitEvent]) -> Iterator[str]:
    """Return events with a lower offset than an event that ended before they began."""
    by_place: dict[tuple[str, str], list[CommitEvent]] = defaultdict(list)
    for event in events:
        by_place[event.group, event.partition].append(event)
    for found in by_place.values():
        ended = sorted(found, key=lambda event: event.end_ns)
        place, most = 0, None
        for event in sorted(found, key=lambda event: event.begin_ns):
            while place < len(ended) and ended[place].end_ns < event.begin_ns:
                if most is None or ended[place].offset > most.offset:
                    most = ended[place]
                place += 1
            if most is not None and event.offset < most.offset:
                ago_s = (event.end_ns - most.end_ns) / 1e9
                yield (
                    f"moved back: {event.who} had {event.partition} of {event.group} at "
                    f"{event.offset}, {ago_s:.1f} s after {most.who} had {most.offset}"
                )


def values(found: Poll) -> Iterator[str]:
    for records in found.seen.values():
        for record in records:
            yield record.value


def skipped(
    operations: Iterable[Operation], members: Iterable[str], written: Poll
) -> Iterator[str]:
    """Return the records that no member of a group received."""
    names = set(members)
    got = {
        value
        for operation in operations
        if operation.process in names
        for poll in operation.polls()
        for value in values(poll)
    }
    for value in values(written):
        if value not in got:
            yield f"skipped: none of {sorted(names)} got {value}"


def not_once(inputs: Poll, outputs: Poll) -> Iterator[str]:
    """Return the inputs that do not have exactly one output."""
    count = Counter(value.partition("@")[0] for value in values(outputs))
    for value in values(inputs):
        if count[value] != 1:
            yield f"not once: {value} was processed {count[value]} times"
