"""The order of tests by recorded durations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import duration


class Item:
    """A test, as far as sorting looks at it."""

    def __init__(self, name: str, group: str | None) -> None:
        self.nodeid = name
        self._mark = None if group is None else pytest.mark.xdist_group(group).mark

    def get_closest_marker(self, _: str) -> pytest.Mark | None:
        return self._mark


def items() -> list[Any]:
    groups = {"short": "short", "long": "long", "unknown": None, "long too": "long"}
    return [Item(name, group) for name, group in groups.items()]


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/a/test_x.py::test_y@a/test_x.py", "a/test_x.py"),
        ("tests/a/test_x.py::test_y[a@b]", "tests/a/test_x.py::test_y[a@b]"),
        ("tests/a/test_x.py::test_y[a@b]@nemesis", "nemesis"),
        ("tests/a/test_x.py::test_y", "tests/a/test_x.py::test_y"),
    ],
)
def test_the_group_of_a_report(nodeid: str, group: str) -> None:
    assert duration.group_of_report(nodeid) == group


def test_only_durations_worth_recording_are_written_longest_first(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    assert duration.read(path) == {}
    duration.write(path, {"b": 2.04, "tiny": 0.2, "a": 30.0})
    assert list(duration.read(path).items()) == [("a", 30.0), ("b", 2.0)]


def test_long_groups_come_first_and_keep_their_order() -> None:
    sorted_items = items()
    duration.sort(sorted_items, {"long": 60.0, "short": 1.0})
    names = [item.nodeid for item in sorted_items]
    assert names == ["long", "long too", "unknown", "short"]


def test_without_records_nothing_moves() -> None:
    sorted_items = items()
    duration.sort(sorted_items, {})
    assert [item.nodeid for item in sorted_items] == ["short", "long", "unknown", "long too"]


def test_tests_of_a_file_without_a_group_stay_together() -> None:
    sorted_items: list[Any] = [Item(f"{file}::{test}", None) for file in "ab" for test in "xyz"]
    duration.sort(sorted_items, {"a::x": 1.0, "b::y": 9.0, "b::z": 2.0})
    names = [item.nodeid for item in sorted_items]
    assert names == ["b::x", "b::y", "b::z", "a::x", "a::y", "a::z"]
