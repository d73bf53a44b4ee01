"""How a command fails: an exit code that a script can read and one sentence that a person can.

Exit codes:

    0    done
    1    failed: the broker refused, or part of the work was not done
    2    usage: an option or argument is wrong
    3    not found: no such topic, partition or file
    4    no connection, or no answer in time
    5    exists already
    6    damaged data found (`log dump`)
    130  interrupted with Ctrl-C before the work was done
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import typer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

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
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no connection or no answer in"
    " time, 5 exists already, 6 damaged data found, 130 interrupted."
)


class CommandError(Exception):
    """Ends the command with `code`; the message is a sentence: what is wrong and what to do."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def guarded(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Turn what a command raises into a sentence on standard error and an exit code."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except CommandError as failure:
            say_error(str(failure))
            raise typer.Exit(failure.code) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output (`| head`) has seen enough. Nothing may be flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return run


def say_error(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def from_kafka_error(
    error: KafkaError, what: str, servers: str, topic: str | None = None
) -> CommandError:
    """The failure for an error of the client library; `what` says what was being done."""
    code = _exit_code(error)
    if code is ExitCode.NOT_FOUND and topic is not None:
        return CommandError(
            code, f"topic {topic!r} does not exist: `millstream topic list` shows those that do."
        )
    if code is ExitCode.NO_CONNECTION:
        return no_connection(servers, str(error.str()))
    return CommandError(code, f"{what}: {_sentence(error)} ({error.name()})")


def no_connection(servers: str, reason: str) -> CommandError:
    return CommandError(
        ExitCode.NO_CONNECTION,
        f"no answer from {servers}: {reason.rstrip('.')}. Is a broker running there?"
        " Start one with `millstream serve`, or name another with --bootstrap-server.",
    )


def _sentence(error: KafkaError) -> str:
    text = str(error.str() or "no reason given")
    return text.removeprefix("Broker: ").removeprefix("Local: ").rstrip(".")


def _exit_code(error: KafkaError) -> ExitCode:
    from confluent_kafka import KafkaError

    number = error.code()
    if number in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - how the library spells its own codes
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    ):
        return ExitCode.NOT_FOUND
    if number in (
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
    ):
        return ExitCode.NO_CONNECTION
    if number == KafkaError.TOPIC_ALREADY_EXISTS:
        return ExitCode.EXISTS
    return ExitCode.FAILED


def raise_failure(failure: CommandError) -> None:
    """For those who are asked what to do about a failure, and can't go on."""
    raise failure
