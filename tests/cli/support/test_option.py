from __future__ import annotations

import pytest

from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.option import is_pattern, name_matcher, renamed_option


def test_patterns_are_globs_for_the_whole_name() -> None:
    matches = name_matcher(["orders.*", "a?c"])
    assert [
        name for name in ("orders.eu", "my.orders.eu", "abc", "abcd", "a.c") if matches(name)
    ] == [
        "orders.eu",
        "abc",
        "a.c",
    ]
    # A dot is a dot, and names are case-sensitive.
    assert not name_matcher(["a.c"])("abc")
    assert not name_matcher(["Orders"])("orders")


def test_a_regular_expression_matches_the_whole_name() -> None:
    matches = name_matcher(["order(s|ed)", "x+"], is_regex=True)
    assert [name for name in ("orders", "ordered", "orders2", "xx") if matches(name)] == [
        "orders",
        "ordered",
        "xx",
    ]


def test_a_wrong_regular_expression_is_a_usage_error() -> None:
    with pytest.raises(CommandError, match=r"'\*x' is not a regular expression.*glob") as raised:
        name_matcher(["*x"], is_regex=True)
    assert raised.value.code is ExitCode.USAGE


def test_is_pattern() -> None:
    assert is_pattern("orders-*")
    assert not is_pattern("orders.eu-1_x")


def test_earlier_spellings_name_the_new_one() -> None:
    assert renamed_option(["t", "--available-now"], ["--to"]) == (
        "--available-now has another name: write --no-follow."
    )
    assert renamed_option(["--drain=yes"], []) == "--drain has another name: write --no-follow."
    assert renamed_option(["--drain"], ["--drain"]) is None
    assert renamed_option(["--", "--drain"], []) is None
    assert renamed_option(["--follow"], []) is None
