"""Options with one spelling and one meaning in all commands.

`--json` is in `terminal.py`, connection options are in `connection.py`, durations, sizes and rates
in `quantity.py`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import typer

from millstream.cli.support.failure import CommandError, ExitCode


class LogLevel(StrEnum):
    """The values of `--log-level`."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogLevelOption: TypeAlias = Annotated[
    LogLevel, typer.Option("--log-level", help="Log lines of this level and above.")
]
#: `--follow` keeps reading new records; `--no-follow` stops once everything is read.
FollowOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--follow/--no-follow",
        help="Keep following new records, or stop once everything is read.",
    ),
]
YesOption: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")
]
RegexOption: TypeAlias = Annotated[
    bool,
    typer.Option("--regex", help="Patterns are regular expressions for whole names, not globs."),
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done.")
]

#: Earlier spellings of options, and what to write instead.
RENAMED: Final = {
    "--available-now": "--no-follow",
    "--continuous": "--follow",
    "--drain": "--no-follow",
    "--execute": "--yes",
    "--max-seconds": "--max-time 30s",
    "--idle-minutes": "--idle 15m",
    "--pattern": "the pattern as an argument, and --regex for a regular expression",
    "--troubled": "--unhealthy",
}


def renamed_option(arguments: Sequence[str], known: Sequence[str]) -> str | None:
    """Return a sentence if an argument is an earlier spelling of an option, else None.

    `known` are the options that the command has."""
    for argument in arguments:
        if argument == "--":
            return None
        name = argument.partition("=")[0]
        if name in RENAMED and name not in known:
            return f"{name} has another name: write {RENAMED[name]}."
    return None


def name_matcher(patterns: Sequence[str], *, is_regex: bool = False) -> Callable[[str], bool]:
    """Return a test whether a whole name matches one of the patterns.

    Patterns are globs: `*`, `?` and `[...]`. Raises CommandError for a wrong regular expression."""
    texts = patterns if is_regex else [fnmatch.translate(pattern) for pattern in patterns]
    try:
        compiled = [re.compile(text) for text in texts]
    except re.error as error:
        raise CommandError(
            ExitCode.USAGE,
            f"{error.pattern!r} is not a regular expression: {error}. Without --regex it is a"
            " glob.",
        ) from None
    return lambda name: any(each.fullmatch(name) for each in compiled)


def is_pattern(text: str) -> bool:
    """Whether a name has the characters of a glob."""
    return any(character in text for character in "*?[")
