from __future__ import annotations

import pytest

from millstream.cli.group.offset_plan import Scope, parse_ago, parse_offsets, parse_scope


def test_scopes() -> None:
    assert parse_scope("orders") == Scope("orders", None)
    assert parse_scope("orders:3") == Scope("orders", frozenset({3}))
    assert parse_scope("orders:0, 4-6") == Scope("orders", frozenset({0, 4, 5, 6}))


@pytest.mark.parametrize("text", ["", ":1", "t:", "t:a", "t:3-1", "t:-1", "t:1,,2", "t:0-99999999"])
def test_a_malformed_scope_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        parse_scope(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("250ms", 0.25), ("1h30m", 5400), ("PT2H30M", 9000), ("P1D", 86_400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_ago(text) == seconds


@pytest.mark.parametrize("text", ["", "P", "PT", "10", "10 m", "2026-01-31T12:00:00Z", "5y", "-1m"])
def test_a_malformed_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|has no unit"):
        parse_ago(text)


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
