"""Reads a password: from an environment variable, the terminal, or standard input.

A password is never an argument: the arguments of a process are visible to other users of the host.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, TypeAlias

import typer

from millstream.cli.support.failure import CommandError, ExitCode

PasswordVariableOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--password-env",
        metavar="NAME",
        help="Environment variable with the password. Without it the password is asked for, or"
        " read from standard input.",
    ),
]


def read_password(variable: str | None) -> str:
    """Return the password. Raises CommandError if there is none."""
    if variable is not None:
        password = os.environ.get(variable, "")
        if not password:
            raise CommandError(ExitCode.USAGE, f"the environment variable {variable} is not set.")
        return password
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandError(
            ExitCode.USAGE,
            "standard input has no password: pipe it, or name a variable with --password-env.",
        )
    return password
