"""The checker finds each kind of violation, and none in a clean run."""

from __future__ import annotations

import json

import pytest

from group_clients.checker import violations
from group_clients.history import History

LEDGER = {0: ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2"]}


def history(member: str, *events: tuple[int, str] | tuple[int, str, object]) -> History:
    """Return a history of `(at, event, argument)` rows."""
    found = History(member)
    for at, event, *rest in events:
        argument = rest[0] if rest else None
        line: dict[str, object] = {"at": at, "event": event}
        match event:
            case "assigned" | "revoked" | "lost":
                line["partitions"] = argument
            case "committing":
                line["offsets"] = {"0": argument}
            case "refused":
                line["reason"] = "ILLEGAL_GENERATION"
            case "processed":
                assert isinstance(argument, int)
                line |= {"partition": 0, "offset": argument, "value": LEDGER[0][argument]}
        found.read([json.dumps(line)])
    return found


def whole(member: str, start_at: int, first: int, end: int) -> History:
    """Return a member that gets the partition, processes `[first, end)` and commits."""
    work = [(start_at + 1, "processed", offset) for offset in range(first, end)]
    return history(
        member,
        (start_at, "assigned", [0]),
        *work,
        (start_at + 2, "committing", end),
        (start_at + 3, "committed"),
    )


def kinds(*histories: History) -> set[str]:
    return {each.partition(":")[0] for each in violations(LEDGER, histories)}


def test_a_crash_and_a_takeover_are_no_violation() -> None:
    first = history(
        "first",
        (1, "assigned", [0]),
        (2, "processed", 0),
        (3, "processed", 1),
        (4, "committing", 2),
        (5, "committed"),
        (6, "processed", 2),
        (7, "processed", 3),
        (8, "committing", 4),
    )
    first.killed(9)
    assert kinds(first, whole("second", 20, 2, 6)) == set(), "the last commit may be lost"
    assert kinds(first, whole("second", 20, 4, 6)) == set(), "or it may have arrived"


def test_a_paused_member_may_continue_until_its_commit_is_rejected() -> None:
    sleeper = history(
        "sleeper",
        (1, "assigned", [0]),
        (2, "processed", 0),
        (30, "processed", 1),
        (31, "committing", 2),
        (32, "refused"),
        (33, "lost", [0]),
    )
    sleeper.paused(3)
    sleeper.woken(29)
    assert kinds(sleeper, whole("other", 10, 0, 6)) == set()


def test_a_record_that_no_member_processed_is_missing() -> None:
    assert kinds(whole("one", 1, 0, 5)) == {"missing"}


def test_a_value_that_differs_from_the_written_one() -> None:
    one = whole("one", 1, 0, 6)
    one.ownerships[0].processed[3].value = "b 9"
    assert kinds(one) == {"content"}


@pytest.mark.parametrize("offsets", [[0, 1, 3, 2, 4, 5], [0, 1, 2, 3, 3, 4, 5], [0, 1, 4, 5, 2, 3]])
def test_offsets_that_do_not_go_up_by_one(offsets: list[int]) -> None:
    events = [(place + 2, "processed", offset) for place, offset in enumerate(offsets)]
    assert "order" in kinds(history("one", (1, "assigned", [0]), *events))


def test_a_gap_is_out_of_order() -> None:
    events = [(2, "processed", 0), (3, "processed", 2)]
    assert kinds(history("one", (1, "assigned", [0]), *events)) == {"order", "missing"}


def test_a_start_below_the_committed_offset() -> None:
    first = whole("first", 1, 0, 4)
    first.killed(10)
    # The commit is not lower than the other's, so only the start is wrong.
    assert kinds(first, whole("second", 20, 2, 6)) == {"start"}


def test_a_start_at_an_offset_that_no_member_committed() -> None:
    first = whole("first", 1, 0, 4)
    first.killed(10)
    third = history("third", (40, "assigned", [0]), (41, "processed", 5))
    assert kinds(first, whole("second", 20, 4, 6), third) == {"start", "shared"}


def test_two_owners_at_once() -> None:
    first, second = whole("first", 1, 0, 4), whole("second", 20, 4, 6)
    assert kinds(first, second) == {"shared"}


def test_a_partition_lost_without_a_pause() -> None:
    first = whole("first", 1, 0, 4)
    first.record({"at": 10, "event": "lost", "partitions": [0]})
    assert kinds(first, whole("second", 20, 4, 6)) == {"shared"}


def test_a_fenced_commit_that_was_acknowledged() -> None:
    sleeper = history(
        "sleeper",
        (1, "assigned", [0]),
        (2, "processed", 0),
        (31, "committing", 1),
        (32, "committed"),
    )
    sleeper.paused(3)
    sleeper.woken(30)
    assert kinds(sleeper, whole("other", 10, 0, 6)) == {"fenced", "backwards"}


def test_a_commit_that_goes_back() -> None:
    one = whole("one", 1, 0, 6)
    one.record({"at": 10, "event": "committing", "offsets": {"0": 3}})
    one.record({"at": 11, "event": "committed"})
    assert kinds(one) == {"backwards"}


@pytest.mark.parametrize(
    "events",
    [
        [(1, "assigned", [0]), (2, "assigned", [0])],
        [(1, "revoked", [0])],
        [(1, "processed", 0)],
        [(1, "assigned", [0]), (2, "revoked", [0]), (3, "processed", 0)],
    ],
)
def test_events_that_contradict_each_other(events: list[tuple[int, str, object]]) -> None:
    assert "unowned" in kinds(history("one", *events))
