from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millstream.cli.support.option import RENAMED

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("command", "old"),
    [
        (("job", "archive", "t", "--to", "x"), "--available-now"),
        (("pipeline", "run", "."), "--continuous"),
        (("outbox", "relay", "--database", "sqlite:///x"), "--drain"),
        (("txn", "list", "--hanging"), "--idle-minutes"),
        (("txn", "list"), "--pattern"),
        (("cluster", "partitions"), "--troubled"),
    ],
)
def test_an_earlier_spelling_names_the_new_one(
    run: Run, command: tuple[str, ...], old: str
) -> None:
    outcome = run(*command, f"{old}=5")
    assert outcome.code == 2, outcome
    text = " ".join(outcome.error.replace("│", " ").split())
    assert f"{old} has another name: write {RENAMED[old]}." in text
