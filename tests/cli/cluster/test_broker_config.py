"""`millstream broker config` with one broker. Three brokers are in `test_broker.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SETTING = "log.retention.ms"


def described(ask: Run, *arguments: str) -> list[dict[str, Any]]:
    outcome = ask("broker", "config", "describe", *arguments, "--json")
    assert outcome.code == 0, outcome
    return list(json.loads(outcome.out))


def test_set_describe_and_unset(ask: Run) -> None:
    one = ("--broker", "1")
    (before,) = described(ask, SETTING, *one, "--all-configs")
    assert before["source"] in ("default", "static")
    assert not before["read_only"]
    tried = ask("broker", "config", "set", f"{SETTING}=1000", "--dry-run")
    assert (tried.out, "nothing was changed" in tried.error) == (f"{SETTING}: valid\n", True)
    assert described(ask, SETTING) == []
    assert ask("broker", "config", "set", f"{SETTING}=86400000").code == 0
    (everywhere,) = described(ask, SETTING)
    assert (everywhere["value"], everywhere["source"]) == ("86400000", "cluster")
    assert [row["source"] for row in described(ask, SETTING, *one)] == ["cluster"]
    assert ask("broker", "config", "set", f"{SETTING}=3600000", *one).code == 0
    (own,) = described(ask, "log.retention.m?", *one)
    assert (own["value"], own["source"]) == ("3600000", "broker")
    assert "3600000" in ask("broker", "config", "describe", *one).out
    assert ask("broker", "config", "unset", SETTING, *one).out == f"{SETTING}: unset\n"
    assert described(ask, SETTING, *one)[0]["source"] == "cluster"
    assert ask("broker", "config", "unset", SETTING).code == 0
    assert described(ask, SETTING, *one, "-a") == [before]
    assert "Nothing is set at run time" in ask("broker", "config", "describe", SETTING).error


def test_requests_that_are_rejected(ask: Run) -> None:
    wrong = ask("broker", "config", "set", "log.retention.ms=soon")
    assert (wrong.code, "soon" in wrong.error) == (1, True), wrong
    fixed = ask("broker", "config", "set", "log.dir=/x")
    assert (fixed.code, "log.dir" in fixed.error) == (1, True), fixed
    assert ask("broker", "config", "set", "no.such.setting=1").code == 1
    assert ask("broker", "config", "set", "nonsense").code == 2
    missing = ask("broker", "config", "describe", "--broker", "99")
    assert (missing.code, "broker 99 is not alive" in missing.error) == (3, True), missing
