"""The history of one group member, read from the lines that its program writes.

Each line is a JSON object with `event` and `at`. `at` is in nanoseconds of the machine's monotonic
clock, which programs in all the languages can read:

    assigned    partitions   the member owns these partitions from now on, besides its others
    revoked     partitions   the member stops owning these partitions now
    lost        partitions   the member learned that it no longer owns these partitions
    processed   partition, offset, value
    holding                  the member waits, as requested, between processing and committing
    committing  offsets      the member is about to commit: partition to offset
    committed                the broker acknowledged that commit
    refused     reason       the broker rejected that commit

A member sends one commit at a time. The test adds when the member was killed, paused (SIGSTOP) and
resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class End(Enum):
    """The way in which an ownership ended."""

    REVOKED = "revoked"
    LOST = "lost"
    KILLED = "killed"
    #: The member still owns the partition.
    NONE = "none"


@dataclass(slots=True)
class Processed:
    at: int
    partition: int
    offset: int
    value: str


@dataclass(slots=True)
class Commit:
    """One commit. `answered_at` is None if the member died before the response."""

    member: str
    sent_at: int
    offsets: dict[int, int]
    answered_at: int | None = None
    is_refused: bool = False
    reason: str = ""

    @property
    def is_acknowledged(self) -> bool:
        return self.answered_at is not None and not self.is_refused


@dataclass(slots=True)
class Ownership:
    """An uninterrupted time in which one member owns a partition."""

    member: str
    partition: int
    start_at: int
    end_at: int | None = None
    end: End = End.NONE
    processed: list[Processed] = field(default_factory=list)

    def is_over_by(self, at: int) -> bool:
        return self.end_at is not None and self.end_at <= at


class History:
    """The history of one member, read line by line; contradictions are violations."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.ownerships: list[Ownership] = []
        self.commits: list[Commit] = []
        self.processed_count = 0
        #: How often the member waited before a commit, and how often it was released.
        self.holding_count = 0
        self.release_count = 0
        #: [from, to) ranges in which the member was paused.
        self.pauses: list[tuple[int, int | None]] = []
        self.killed_at: int | None = None
        #: Events without ownership of the partition, or assignments of partitions already owned.
        self.contradictions: list[str] = []
        self._owned: dict[int, Ownership] = {}

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._owned)

    @property
    def committed(self) -> dict[int, int]:
        """Return the last acknowledged commit per partition."""
        found: dict[int, int] = {}
        for commit in self.commits:
            if commit.is_acknowledged:
                found |= commit.offsets
        return found

    @property
    def is_awaiting_answer(self) -> bool:
        return bool(self.commits) and self.commits[-1].answered_at is None

    def was_paused_within(self, start_at: int, end_at: int) -> bool:
        return any(
            pause < end_at and (woken is None or woken > start_at) for pause, woken in self.pauses
        )

    # Faults

    def killed(self, at: int) -> None:
        self.killed_at = at
        self._end(list(self._owned), at, End.KILLED)

    def paused(self, at: int) -> None:
        self.pauses.append((at, None))

    def woken(self, at: int) -> None:
        self.pauses[-1] = (self.pauses[-1][0], at)

    # Events

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.record(json.loads(line))

    def record(self, event: dict[str, Any]) -> None:
        at = int(event["at"])
        match event["event"]:
            case "assigned":
                self._begin(event["partitions"], at)
            case "revoked":
                self._end(event["partitions"], at, End.REVOKED)
            case "lost":
                self._end(event["partitions"], at, End.LOST)
            case "processed":
                self._process(Processed(at, event["partition"], event["offset"], event["value"]))
            case "holding":
                self.holding_count += 1
            case "committing":
                offsets = {int(number): int(to) for number, to in event["offsets"].items()}
                self.commits.append(Commit(self.member, at, offsets))
            case "committed":
                self.commits[-1].answered_at = at
            case "refused":
                commit = self.commits[-1]
                commit.answered_at, commit.is_refused = at, True
                commit.reason = event["reason"]
            case unknown:
                raise ValueError(f"{self.member} reported an unknown event {unknown!r}")

    def _begin(self, partitions: list[int], at: int) -> None:
        for number in partitions:
            if number in self._owned:
                self.contradictions.append(f"{self.member} was assigned partition {number} twice")
            ownership = Ownership(self.member, number, at)
            self._owned[number] = ownership
            self.ownerships.append(ownership)

    def _end(self, partitions: list[int], at: int, end: End) -> None:
        for number in partitions:
            ownership = self._owned.pop(number, None)
            if ownership is None:
                self.contradictions.append(
                    f"{self.member} gave up partition {number}, which it did not own"
                )
            else:
                ownership.end_at, ownership.end = at, end

    def _process(self, processed: Processed) -> None:
        self.processed_count += 1
        ownership = self._owned.get(processed.partition)
        if ownership is None:
            self.contradictions.append(
                f"{self.member} processed offset {processed.offset} of partition"
                f" {processed.partition}, which it did not own"
            )
        else:
            ownership.processed.append(processed)
