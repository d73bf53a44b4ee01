"""The history of what clients did and saw, recorded while they run: the input of `harness.checker`.

A history is a list of operations. An operation spans the invocation and completion of a
transaction, a poll, or both, in one process. Values are unique: one operation sends each value
once, so that a value identifies its sender.

On disk a history is JSON lines, one event per line, and each process writes its own file. A killed
process leaves an invocation without a completion: an operation of unknown outcome, with its planned
steps.

    {"process": "writer-1", "number": 7, "type": "invoke", "time_ns": 120, "steps": [...]}
    {"process": "writer-1", "number": 7, "type": "ok", "time_ns": 340, "steps": [...]}

All processes use one clock: the machine's monotonic clock or the simulator's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder, Encoder


class Outcome(StrEnum):
    """OK: all of it happened. FAIL: none of it happened or will happen. INFO: unknown."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Send(Struct, frozen=True, tag="send", tag_field="step"):
    """One sent record; `offset` is set if it was acknowledged."""

    partition: str
    value: str
    offset: int | None = None


class Seen(Struct, frozen=True, array_like=True):
    """One record that a reader returned."""

    offset: int
    value: str


class Poll(Struct, frozen=True, tag="poll", tag_field="step"):
    """Records by partition, in the order in which a reader returned them.

    `ends`: partitions that the reader has read up to this offset, the end of the log at some moment
    after the operation began, open transactions included.
    `group`: the operation commits these positions for this group, if it commits.
    """

    seen: dict[str, list[Seen]]
    ends: dict[str, int] = {}
    committed: bool = True
    group: str | None = None


class Assign(Struct, frozen=True, tag="assign", tag_field="step"):
    """The reader's positions in these partitions were reset to unknown offsets."""

    partitions: list[str]


Step: TypeAlias = Send | Poll | Assign


class Operation(Struct, frozen=True):
    """One operation; `end_ns` is None without a recorded completion."""

    process: str
    number: int
    outcome: Outcome
    begin_ns: int
    end_ns: int | None
    steps: list[Step]

    @property
    def name(self) -> str:
        return f"{self.process}/{self.number}"

    def sends(self) -> list[Send]:
        return [step for step in self.steps if isinstance(step, Send)]

    def polls(self) -> list[Poll]:
        return [step for step in self.steps if isinstance(step, Poll)]


class EventType(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Event(Struct, frozen=True):
    """One line of a history file."""

    process: str
    number: int
    type: EventType
    time_ns: int
    steps: list[Step]


_ENCODER = Encoder()
_DECODER = Decoder(Event)


class Recorder:
    """Writes the history of one process. Written events survive a kill of the process."""

    def __init__(self, path: Path, process: str, clock_ns: Callable[[], int]) -> None:
        self._process = process
        self._clock_ns = clock_ns
        self._number = -1
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def begin(self, planned: Iterable[Send] = ()) -> None:
        """Record the start of an operation with its planned steps, in case this process dies."""
        self._number += 1
        self._write(EventType.INVOKE, list(planned))

    def end(self, outcome: Outcome, steps: Sequence[Step]) -> None:
        self._write(EventType(outcome), list(steps))

    def _write(self, kind: EventType, steps: list[Step]) -> None:
        event = Event(self._process, self._number, kind, self._clock_ns(), steps)
        os.write(self._file, _ENCODER.encode(event) + b"\n")


def operations_of(events: Iterable[Event]) -> list[Operation]:
    """Return the operations in the order of their start."""
    begun: dict[tuple[str, int], Event] = {}
    done: list[Operation] = []
    for event in events:
        key = (event.process, event.number)
        if event.type is EventType.INVOKE:
            assert key not in begun, f"{key} began twice"
            begun[key] = event
            continue
        start = begun.pop(key)
        outcome = Outcome(event.type)
        done.append(Operation(*key, outcome, start.time_ns, event.time_ns, event.steps))
    done += [
        Operation(*key, Outcome.INFO, event.time_ns, None, event.steps)
        for key, event in begun.items()
    ]
    return sorted(done, key=lambda operation: (operation.begin_ns, operation.name))


def read_history(paths: Iterable[Path]) -> list[Operation]:
    """Read all files. The last line of a file may be truncated, if its writer was killed."""
    events: list[Event] = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        events += [_DECODER.decode(line) for line in lines[:-1]]
    return operations_of(events)
