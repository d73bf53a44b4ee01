"""`millstream quota` with one broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def listed(ask: Run, *arguments: str) -> list[dict[str, Any]]:
    outcome = ask("quota", "list", *arguments, "--json")
    assert outcome.code == 0, outcome
    return list(json.loads(outcome.out))


def test_set_list_and_delete(ask: Run) -> None:
    user = ("--user", "cli-alice")
    done = ask("quota", "set", *user, "--produce", "10MB/s", "--request-percentage", "50%")
    assert done.code == 0, done
    assert "user cli-alice: producer_byte_rate: set to 9.5 MiB/s" in done.out
    (row,) = listed(ask, *user)
    assert row == {
        "user": "cli-alice",
        "client_id": None,
        "ip": None,
        "quotas": {"producer_byte_rate": 10_000_000.0, "request_percentage": 50.0},
    }
    table = ask("quota", "list", *user).out
    assert "user cli-alice" in table
    assert "50%" in table
    assert ask("quota", "delete", "request_percentage", *user).code == 0
    assert listed(ask, *user)[0]["quotas"] == {"producer_byte_rate": 10_000_000.0}
    assert ask("quota", "delete", *user, "--json").code == 0
    assert listed(ask, *user) == []
    assert "No quotas match" in ask("quota", "list", *user).error


def test_defaults_and_combinations(ask: Run) -> None:
    both = ("--user-default", "--client-id", "cli-app")
    assert ask("quota", "set", *both, "--fetch", "1MiB/s", "--json").code == 0
    address = ("--ip", "10.1.2.3")
    assert ask("quota", "set", *address, "--connections", "5/s").code == 0
    (row,) = listed(ask, "--client-id", "cli-app")
    assert (row["user"], row["client_id"]) == ("", "cli-app")
    assert row["quotas"] == {"consumer_byte_rate": 1048576.0}
    (row,) = listed(ask, *address)
    assert row["quotas"] == {"connection_creation_rate": 5.0}
    assert "user (default), client-id cli-app" in ask("quota", "list").out
    for entity in (both, address):
        assert ask("quota", "delete", *entity).code == 0


def test_a_dry_run_changes_nothing(ask: Run) -> None:
    user = ("--user", "cli-dry")
    done = ask("quota", "set", *user, "--mutations", "5/s", "--dry-run")
    assert (done.code, "nothing was changed" in done.error) == (0, True)
    assert listed(ask, *user) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("set", "--produce", "1MB/s"), 2, "--user"),
        (("set", "--user", "a"), 2, "--produce"),
        (("set", "--user", "a", "--user-default", "--produce", "1MB/s"), 2, "not both"),
        (("set", "--user", "a", "--request-percentage", "much"), 2, "percentage"),
        (("set", "--user", "a", "--connections", "1/s"), 1, "connection_creation_rate"),
        (("set", "--ip", "nowhere", "--connections", "1/s"), 1, "not an IP address"),
        (("delete", "--user", "nobody"), 3, "has no quota"),
        (("delete", "no_such_quota", "--user", "nobody"), 3, "no_such_quota"),
    ],
)
def test_requests_that_are_rejected(
    ask: Run, arguments: tuple[str, ...], code: int, text: str
) -> None:
    outcome = ask("quota", *arguments)
    assert outcome.code == code, outcome
    assert text in " ".join(outcome.error.split())
