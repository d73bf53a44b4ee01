"""Histories on disk can be read back, also after their writer died."""

from __future__ import annotations

import itertools
from pathlib import Path

from harness.history import (
    Assign,
    Operation,
    Outcome,
    Poll,
    Recorder,
    Seen,
    Send,
    Step,
    read_history,
)

STEPS: list[Step] = [
    Assign(["a-0", "a-1"]),
    Poll({"a-0": [Seen(3, "x"), Seen(5, "y")]}, ends={"a-1": 9}, committed=False, group="g"),
    Send("b-0", "z", 7),
    Send("b-0", "unknown"),
]


def recorder(path: Path, process: str, clock: itertools.count[int]) -> Recorder:
    return Recorder(path, process, lambda: next(clock))


def test_operations_come_back_as_they_were(tmp_path: Path) -> None:
    clock = itertools.count(100)
    with recorder(tmp_path / "one", "one", clock) as one:
        one.begin([Send("b-0", "z")])
        one.end(Outcome.OK, STEPS)
        one.begin()
        one.end(Outcome.FAIL, [])
    assert read_history([tmp_path / "one"]) == [
        Operation("one", 0, Outcome.OK, 100, 101, STEPS),
        Operation("one", 1, Outcome.FAIL, 102, 103, []),
    ]


def test_processes_are_merged_by_the_time_they_began(tmp_path: Path) -> None:
    clock = itertools.count()
    with (
        recorder(tmp_path / "one", "one", clock) as one,
        recorder(tmp_path / "two", "two", clock) as two,
    ):
        one.begin()
        two.begin()
        two.end(Outcome.OK, [])
        one.end(Outcome.OK, [])
        two.begin()
        two.end(Outcome.INFO, [])
    found = read_history([tmp_path / "two", tmp_path / "one"])
    assert [operation.name for operation in found] == ["one/0", "two/0", "two/1"]


def test_an_operation_that_never_ended_has_an_unknown_outcome(tmp_path: Path) -> None:
    with recorder(tmp_path / "one", "one", itertools.count()) as one:
        one.begin([Send("a-0", "planned")])
    assert read_history([tmp_path / "one"]) == [
        Operation("one", 0, Outcome.INFO, 0, None, [Send("a-0", "planned")])
    ]


def test_an_incomplete_line_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with recorder(path, "one", itertools.count()) as one:
        one.begin([Send("a-0", "x")])
        one.end(Outcome.OK, [Send("a-0", "x", 0)])
    whole = path.read_bytes()
    last = whole.index(b"\n") + 1
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        (operation,) = read_history([path])
        assert (operation.outcome, operation.end_ns) == (Outcome.INFO, None)
