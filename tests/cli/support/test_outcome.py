from __future__ import annotations

import json
import sys

import pytest
import typer

from millstream.cli.support.failure import CommandError, ExitCode
from millstream.cli.support.outcome import confirm_deletion, report

MISSING = CommandError(ExitCode.NOT_FOUND, "there is no b.")
BROKEN = CommandError(ExitCode.FAILED, "c does not want to.")


def test_ignored_errors_are_reported_as_results(capsys: pytest.CaptureFixture[str]) -> None:
    report(
        "group", {"a": None, "b": MISSING}, "deleted", {ExitCode.NOT_FOUND: "absent"}, as_json=False
    )
    assert capsys.readouterr() == ("a: deleted\nb: absent\n", "")


def test_the_first_failure_sets_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as raised:
        report("group", {"a": None, "b": MISSING, "c": BROKEN}, "deleted", {}, as_json=True)
    assert raised.value.exit_code == ExitCode.NOT_FOUND
    out, error = capsys.readouterr()
    assert [row["result"] for row in json.loads(out)] == ["deleted", "failed", "failed"]
    assert "there is no b." in error
    assert "c does not want to." in error


def test_a_deletion_must_be_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="--yes"):
        confirm_deletion(["a"], "it", "them")
    questions: list[str] = []

    def answer(question: str, *, err: bool) -> bool:
        questions.append(question)
        return len(questions) > 1

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", answer)
    with pytest.raises(CommandError, match="nothing was deleted"):
        confirm_deletion(["a"], "what it has", "what they have")
    confirm_deletion([f"g{n}" for n in range(7)], "what it has", "what they have")
    assert questions == [
        "Delete a and what it has?",
        "Delete g0, g1, g2, g3, g4 and 2 more and what they have?",
    ]
