"""Commands that do something to each of several things: asking first, and telling how each went.

What can be done is done; what failed is said at the end, and the command ends with the exit code of
the first failure.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import typer

from millstream.cli.support.failure import CommandError, ExitCode, say_error
from millstream.cli.support.terminal import print_json


def confirm_deletion(names: Sequence[str], of_one: str, of_many: str) -> None:
    """Ask whether to delete these, and what goes with one or with many of them."""
    if not sys.stdin.isatty():
        raise CommandError(
            ExitCode.USAGE, "deleting needs a confirmation: pass --yes where nobody can be asked."
        )
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    if not typer.confirm(f"Delete {shown} and {of_one if len(names) == 1 else of_many}?", err=True):
        raise CommandError(ExitCode.FAILED, "nothing was deleted.")


def report(
    noun: str,
    outcomes: Mapping[str, CommandError | str | None],
    done: str,
    fine: Mapping[ExitCode, str],
    *,
    as_json: bool,
) -> None:
    """Tell the outcome for each name: `done` where nothing failed, or what `fine` calls it.

    A text is an outcome of its own, and no failure."""
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
