"""How a command fails: with an exit code for scripts and a sentence for people.

Exit codes:

    0    done
    1    failed: the broker rejected a request, or part of the work was not done
    2    usage: an option or argument is wrong
    3    not found: no such topic, partition or file
    4    no connection, or no response in time
    5    exists already
    6    damaged data found (`log dump`)
    130  interrupted with Ctrl-C before the work was done
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, ParamSpec, TypeVar

import typer

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ExitCode(IntEnum):
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NO_CONNECTION = 4
    EXISTS = 5
    DAMAGED = 6
    INTERRUPTED = 130


EXIT_CODES_HELP: Final = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no connection or no response"
    " in time, 5 exists already, 6 damaged data found, 130 interrupted."
)


class CommandError(Exception):
    """Ends the command with `code`. The message says what is wrong and what to do.

    `page` is a page of the documentation about it, for `millstream docs`."""

    def __init__(self, code: ExitCode, message: str, page: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.page = page


def guarded(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Print a command's error on standard error and exit with its code."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except CommandError as failure:
            say_error(str(failure))
            if failure.page:
                typer.secho(f"See: millstream docs {failure.page}", dim=True, err=True)
            raise typer.Exit(failure.code) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of the output (`| head`) has exited. Nothing may be flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return run


def say_error(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def no_connection(servers: str, reason: str) -> CommandError:
    return CommandError(
        ExitCode.NO_CONNECTION,
        f"no response from {servers}: {reason.rstrip('.')}. Is a broker running there?"
        " Start one with `millstream serve`, or name another with --bootstrap-server.",
        "errors#no-connection",
    )


@contextmanager
def failing_with(codes: Mapping[type[Exception], ExitCode], before: str = "") -> Iterator[None]:
    """Turn exceptions into the command's failure. `before` starts the message.

    The first type that matches decides the exit code."""
    try:
        yield
    except tuple(codes) as error:
        code = next(code for kind, code in codes.items() if isinstance(error, kind))
        raise CommandError(code, f"{before}{error}") from None


def raise_failure(failure: CommandError) -> None:
    """Raise `failure`: the callback of callers that cannot continue after one."""
    raise failure
