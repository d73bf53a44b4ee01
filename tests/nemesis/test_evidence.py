"""The checks of the evidence: they find every violation, and nothing else."""

from __future__ import annotations

from harness.history import Operation, Outcome, Poll, Seen, Send
from nemesis.evidence import CommitEvent, disordered, moved_back, not_once, skipped


def commit(offset: int, begin_ns: int, end_ns: int, who: str = "a") -> CommitEvent:
    return CommitEvent("g", "t-0", offset, begin_ns, end_ns, who)


def test_a_concurrent_response_may_have_a_lower_offset() -> None:
    assert not list(moved_back([commit(5, 0, 10), commit(3, 9, 20), commit(5, 21, 22)]))


def test_a_later_response_may_not_have_a_lower_offset() -> None:
    (found,) = moved_back([commit(3, 11, 20, "late"), commit(5, 0, 10), commit(4, 0, 1)])
    assert "late had t-0 of g at 3" in found


def test_partitions_and_groups_are_checked_separately() -> None:
    other = CommitEvent("h", "t-0", 1, 20, 30, "a"), CommitEvent("g", "t-1", 1, 20, 30, "a")
    assert not list(moved_back([commit(5, 0, 10), *other]))


def sent(number: int, partition: str, offset: int | None) -> Operation:
    step = Send(partition, f"w:{number}", offset)
    outcome = Outcome.INFO if offset is None else Outcome.OK
    return Operation("w", number, outcome, number, number + 100, [step])


def test_the_order_of_one_producer_is_per_partition() -> None:
    assert not list(disordered([sent(0, "t-0", 7), sent(1, "t-1", 2), sent(2, "t-0", 8)]))
    assert not list(disordered([sent(0, "t-0", 7), sent(1, "t-0", None), sent(2, "t-0", 8)]))
    (found,) = disordered([sent(2, "t-0", 7), sent(1, "t-0", 8)])
    assert "w sent w:1 before w:2 to t-0, but they are at 8 and 7" in found


def poll(*values: str) -> Poll:
    return Poll({"t-0": [Seen(offset, value) for offset, value in enumerate(values)]})


def test_a_record_that_no_member_received_is_skipped() -> None:
    history = [
        Operation("a", 0, Outcome.OK, 0, 1, [poll("x")]),
        Operation("b", 0, Outcome.OK, 0, 1, [poll("y")]),
        Operation("auditor", 0, Outcome.OK, 0, 1, [poll("x", "y", "z")]),
    ]
    assert list(skipped(history, ["a", "b"], poll("x", "y", "z"))) == [
        "skipped: none of ['a', 'b'] got z"
    ]


def test_every_input_has_one_output() -> None:
    assert not list(not_once(poll("x", "y"), poll("y@p.1", "x@q.1")))
    found = list(not_once(poll("x", "y", "z"), poll("y@p.1", "x@q.1", "x@p.2")))
    assert found == ["not once: x was processed 2 times", "not once: z was processed 0 times"]
