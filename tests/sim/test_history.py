"""The history of a simulated run finds violations. The checker has tests of its own."""

from __future__ import annotations

import pytest

from harness.history import Outcome, Poll, Seen, Send
from sim.history import History


class _Run:
    """A history whose clock advances with every reading."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(self._tick)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def send(self, value: str, offset: int) -> None:
        operation = self.history.begin("producer", [Send("events-0", value)])
        self.history.end(operation, Outcome.OK, [Send("events-0", value, offset)])

    def read(self, *values: str) -> None:
        seen = [Seen(offset, value) for offset, value in enumerate(values)]
        poll = Poll({"events-0": seen}, {"events-0": len(seen)})
        self.history.end(self.history.begin("reader"), Outcome.OK, [poll])


@pytest.fixture
def run() -> _Run:
    return _Run()


def test_a_correct_history_has_no_violations(run: _Run) -> None:
    run.send("a", 0)
    run.send("b", 1)
    run.read("a", "b")
    assert run.history.check() == []
    assert run.history.acknowledged == 2


@pytest.mark.parametrize("values", [["a"], ["a", "b"]])
def test_a_record_that_was_not_acknowledged_may_be_read_or_not(
    run: _Run, values: list[str]
) -> None:
    run.send("a", 0)
    run.history.begin("producer", [Send("events-0", "b")])
    run.read(*values)
    assert run.history.check() == []


def test_a_lost_record_is_found(run: _Run) -> None:
    run.send("a", 0)
    run.send("b", 1)
    run.read("a")
    (found,) = run.history.check()
    assert found.startswith("lost write")


def test_a_violation_that_a_client_reports_is_returned(run: _Run) -> None:
    run.history.violated("that can't be")
    assert run.history.check() == ["that can't be"]


def test_a_committed_offset_that_moves_back_is_found(run: _Run) -> None:
    run.history.committed("group", 0, 5)
    run.history.check_fetched("member", "group", 0, 4, since_s=run.now + 1)
    (found,) = run.history.check()
    assert "fetched offset 4 of group group in partition 0, after 5 was committed" in found


def test_a_fetched_offset_may_be_older_than_a_later_commit(run: _Run) -> None:
    since_s = run.now
    run.history.committed("group", 0, 5)
    run.history.check_fetched("member", "group", 0, 4, since_s=since_s)
    run.history.check_fetched("member", "other", 0, 4, since_s=run.now + 1)
    assert run.history.check() == []
