"""`millstream user`, on a listener without authentication."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_a_user_is_created_listed_changed_and_deleted(
    ask: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "one")
    made = ask("user", "create", "anna", "--password-env", "SECRET", "--mechanism", "scram-sha-512")
    assert (made.code, made.out) == (0, "anna: created\n")
    again = ask("user", "create", "anna", "--password-env", "SECRET")
    assert (again.code, "user 'anna' exists" in again.error) == (5, True)
    rows = json.loads(ask("user", "list", "--json").out)
    assert {"user": "anna", "mechanism": "SCRAM-SHA-512", "iterations": 4096} in rows
    assert "one" not in ask("user", "list").out
    changed = ask("user", "passwd", "anna", "--iterations", "8192", stdin="two\n")
    assert (changed.code, changed.out) == (0, "anna: changed\n")
    rows = json.loads(ask("user", "list", "--json").out)
    assert {"user": "anna", "mechanism": "SCRAM-SHA-512", "iterations": 8192} in rows
    assert ask("user", "delete", "anna").code == 2
    gone = ask("user", "delete", "anna", "--yes", "--json")
    assert json.loads(gone.out) == [{"user": "anna", "result": "deleted"}]
    missing = ask("user", "delete", "anna", "--yes")
    assert (missing.code, "does not exist" in missing.error) == (3, True)
    assert ask("user", "passwd", "anna", stdin="x\n").code == 3


@pytest.mark.parametrize(
    ("arguments", "given", "part"),
    [
        (["--password-env", "NOT_SET"], "", "NOT_SET is not set"),
        ([], "", "standard input has no password"),
        (["--mechanism", "PLAIN"], "x\n", "PLAIN"),
        (["--iterations", "4095"], "x\n", "4095"),
    ],
)
def test_wrong_options(ask: Run, arguments: list[str], given: str, part: str) -> None:
    outcome = ask("user", "create", "berta", *arguments, stdin=given)
    assert outcome.code == 2
    assert part in outcome.error
