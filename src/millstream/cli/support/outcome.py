"""Confirmation before a command changes something, and the report of what it did.

A command that changes several things does what it can. It reports the failures at the end and exits
with the code of the first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import typer

from millstream.cli.support.failure import CommandError, ExitCode, say_error
from millstream.cli.support.terminal import print_json


def confirm(question: str, doing: str, refusal: str) -> None:
    """Ask a yes-or-no question on the terminal. Raises CommandError unless the answer is yes.

    `doing` names the action if there is no terminal; `refusal` is the message after a no."""
    if not sys.stdin.isatty():
        raise CommandError(
            ExitCode.USAGE, f"{doing} needs a confirmation: pass --yes if there is no terminal."
        )
    if not typer.confirm(question, err=True):
        raise CommandError(ExitCode.FAILED, refusal)


def confirm_deletion(names: Sequence[str], of_one: str, of_many: str) -> None:
    """Ask whether to delete `names`, together with `of_one` or `of_many`."""
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    rest = of_one if len(names) == 1 else of_many
    confirm(f"Delete {shown} and {rest}?", "deleting", "nothing was deleted.")


def report(
    noun: str,
    outcomes: Mapping[str, CommandError | str | None],
    done: str,
    fine: Mapping[ExitCode, str],
    *,
    as_json: bool,
) -> None:
    """Report the outcome for each name: `done`, a text of its own, or a failure.

    Failures whose code is in `fine` count as done and are reported by that text."""
    rows: list[dict[str, str]] = []
    failures: list[CommandError] = []
    for name, failure in outcomes.items():
        if failure is None:
            rows.append({noun: name, "result": done})
        elif isinstance(failure, str):
            rows.append({noun: name, "result": failure})
        elif failure.code in fine:
            rows.append({noun: name, "result": fine[failure.code]})
        else:
            rows.append({noun: name, "result": "failed", "error": str(failure)})
            failures.append(failure)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            if row["result"] != "failed":
                typer.echo(f"{row[noun]}: {row['result']}")
    for failure in failures:
        say_error(str(failure))
    if failures:
        raise typer.Exit(failures[0].code)
