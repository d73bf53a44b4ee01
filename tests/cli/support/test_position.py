from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.support.position import Range, is_duration, parse_moment, start_at

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", 0),
        ("1699999999999", 1_699_999_999_999),
        ("250ms", NOW - 250),
        ("30s", NOW - 30_000),
        ("10m", NOW - 600_000),
        ("2h", NOW - 7_200_000),
        ("1d", NOW - 86_400_000),
        ("2w", NOW - 1_209_600_000),
        ("99999w", 0),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20.250+00:00", NOW + 250),
        ("2023-11-15T00:13:20+02:00", NOW),
    ],
)
def test_times(text: str, moment: int) -> None:
    assert parse_moment(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "-5m", "10 m", "yesterday", "10y", "2023-13-01"])
def test_a_malformed_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: give a duration"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    ("offset", "start"), [(0, 10), (15, 15), (20, 20), (99, 20), (-1, 19), (-10, 10), (-50, 10)]
)
def test_start_offsets(offset: int, start: int) -> None:
    assert start_at(offset, Range(10, 20)) == start


@given(st.integers(), st.integers(0, 100), st.integers(0, 100))
def test_a_start_offset_is_always_within_the_partition(
    offset: int, first: int, length: int
) -> None:
    available = Range(first, first + length)
    assert available.start <= start_at(offset, available) <= available.end


def test_is_duration_rejects_times() -> None:
    assert is_duration("10m")
    assert not is_duration("1699999999999")
    assert not is_duration("2023-11-14T22:13:20Z")
