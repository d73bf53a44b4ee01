from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def filled(ask: Run, topic: str) -> str:
    """A topic with ten messages in partition 0, one second apart, and one in partition 2."""
    lines = "".join(
        json.dumps({"value": f"v{n}", "timestamp": 1_700_000_000_000 + n * 1000}) + "\n"
        for n in range(10)
    )
    assert ask("produce", topic, "--json", "-p", "0", stdin=lines).code == 0
    assert ask("produce", topic, "other", "-p", "2").code == 0
    return topic


def starts(ask: Run, topic: str) -> list[int]:
    (row,) = json.loads(ask("topic", "describe", topic, "--json").out)
    return [each["start_offset"] for each in row["partitions"]]


def test_records_before_an_offset(ask: Run, filled: str) -> None:
    arguments = ("topic", "delete-records", filled, "--before-offset", "4")
    plan = ask(*arguments, "--dry-run", "--json")
    assert plan.code == 0, plan
    rows = json.loads(plan.out)["partitions"]
    assert [(row["new_start_offset"], row["offsets"], row["result"]) for row in rows] == [
        (4, 4, "would be deleted"),
        (0, 0, "stays"),
        (1, 1, "would be deleted"),
    ]
    refused = ask(*arguments)
    assert refused.code == 2
    assert "--yes" in refused.error
    assert starts(ask, filled) == [0, 0, 0]
    done = ask(*arguments, "--yes", "-p", "0")
    assert done.code == 0, done
    assert done.out.splitlines()[-1].split() == ["0", "0", "10", "4", "4", "deleted"]
    assert starts(ask, filled) == [4, 0, 0]


def test_records_before_a_time_and_all_records(ask: Run, filled: str) -> None:
    before = ("topic", "delete-records", filled, "--before", "2023-11-14T22:13:27Z", "--yes")
    assert ask(*before).code == 0
    # Partition 2 has one record, written now.
    assert starts(ask, filled) == [7, 0, 0]
    assert ask("topic", "delete-records", filled, "--all", "--yes", "--json").code == 0
    assert starts(ask, filled) == [10, 0, 1]
    again = ask("topic", "delete-records", filled, "--all", "--yes")
    assert again.code == 0
    assert "Nothing to delete" in again.error


def test_what_does_not_exist(ask: Run, topic: str) -> None:
    assert ask("topic", "delete-records", "nope", "--all", "--yes").code == 3
    missing = ask("topic", "delete-records", topic, "--all", "--yes", "-p", "3")
    assert missing.code == 3
    assert "has 3 partitions" in missing.error


@pytest.mark.parametrize(
    "arguments", [(), ("--all", "--before-offset", "1"), ("--before", "yesterday")]
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("topic", "delete-records", "t", *arguments, "-b", "127.0.0.1:1").code == 2
