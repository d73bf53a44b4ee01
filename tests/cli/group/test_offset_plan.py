from __future__ import annotations

import pytest

from millstream.cli.group.offset_plan import (
    Aim,
    Scope,
    Target,
    parse_ago,
    parse_offsets,
    parse_scope,
    plan_moves,
)
from millstream.cli.support.position import Range

NOW_MS = 1_700_000_000_000
RANGES = {("t", 1): Range(0, 8), ("t", 0): Range(10, 20)}


def test_scopes() -> None:
    assert parse_scope("orders") == Scope("orders", None)
    assert parse_scope("orders:3") == Scope("orders", frozenset({3}))
    assert parse_scope("orders:0, 4-6") == Scope("orders", frozenset({0, 4, 5, 6}))


@pytest.mark.parametrize("text", ["", ":1", "t:", "t:a", "t:3-1", "t:-1", "t:1,,2", "t:0-99999999"])
def test_a_malformed_scope_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        parse_scope(text)


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("10m", 600_000), ("250ms", 250), ("PT2H30M", 9_000_000), ("P1D", 86_400_000), ("PT5S", 5000)],
)
def test_durations(text: str, ago_ms: int) -> None:
    assert parse_ago(text, NOW_MS) == NOW_MS - ago_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "10", "10 m", "2026-01-31T12:00:00Z", "5y", "-1m"])
def test_a_malformed_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (duration|time): give"):
        parse_ago(text, NOW_MS)


def test_a_file_of_offsets() -> None:
    lines = ["topic,partition,offset", "# saved", "", "a,0,5", '"b", 12 , 0']
    assert parse_offsets(lines) == {("a", 0): 5, ("b", 12): 0}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "no offsets"),
        (["a,0,1", "a,0"], "line 2"),
        (["a,0,-1"], "line 1"),
        (["a,x,1"], "line 1"),
        ([",0,1"], "line 1"),
        (["a,0,1", "a,0,2"], "second time"),
    ],
)
def test_a_bad_file_names_the_line(lines: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_offsets(lines)


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (Target(Aim.EARLIEST), [10, 0]),
        (Target(Aim.LATEST), [20, 8]),
        (Target(Aim.OFFSET, 9), [10, 8]),
        (Target(Aim.SHIFT, -3), [12, 0]),
        (Target(Aim.SHIFT, 100), [20, 8]),
        (Target(Aim.MOMENT, NOW_MS), [14, 8]),
        (Target(Aim.FILE, offsets={("t", 0): 11, ("t", 1): 99}), [11, 8]),
    ],
)
def test_moves_stay_within_the_offsets_of_a_partition(target: Target, new: list[int]) -> None:
    moves = plan_moves(target, RANGES, {("t", 0): 15, ("t", 1): 2}, {("t", 0): 14})
    assert [(move.partition, move.current) for move in moves] == [(0, 15), (1, 2)]
    assert [move.new for move in moves] == new
    assert [move.difference for move in moves] == [new[0] - 15, new[1] - 2]


def test_partitions_without_a_committed_offset() -> None:
    (first, second) = plan_moves(Target(Aim.EARLIEST), RANGES, {("t", 0): 10}, {})
    assert (first.changes, first.difference) == (False, 0)
    assert (second.changes, second.difference, second.current) == (True, None, None)
    with pytest.raises(ValueError, match="t-1 has no committed offset"):
        plan_moves(Target(Aim.SHIFT, 1), RANGES, {("t", 0): 10}, {})
