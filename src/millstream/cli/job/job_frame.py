"""What the commands of `millstream job` share: options, progress, the report, exit codes.

A command takes `shared` for the options of all of them, builds the call of its job and hands it on:

    @job_command(app)
    def archive(topics: ..., to: ..., *, shared: Shared) -> None:
        shared.carry_out(lambda options: job(topics, to, **options))
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from millstream.cli.support.connection import (
    PropertiesOption,
    ServersOption,
    parse_pairs,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.position import parse_moment
from millstream.cli.support.terminal import JsonOption, error_console, note, print_json, print_table
from millstream.env.termination import on_termination
from millstream.model.bootstrap import SERVERS_DEFAULT
from millstream.spark.job.job_error import Failure, JobError

if TYPE_CHECKING:
    from millstream.spark.job.report import Progress, Report, Step, Value
    from millstream.spark.job.run import RunOptions

MasterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master: local[4], spark://HOST:7077, k8s://... [default: local[*]]",
        rich_help_panel="Spark",
    ),
]
RemoteOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--remote",
        metavar="sc://HOST:PORT",
        help="A Spark Connect server to run on, instead of a master.",
        rich_help_panel="Spark",
    ),
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done.")
]
AllowGapsOption: TypeAlias = Annotated[
    bool, typer.Option("--allow-gaps", help="Go on where retention was faster.")
]
SinceOption: TypeAlias = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From then on: 10m, 2h, a date.")
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Before then.")
]

#: To which PySpark writes what it raises as well.
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
#: What to do where Spark's Python is another one.
_ELSEWHERE: Final = (
    'its Python does not have Millstream: install "millstream[spark]" where Spark runs, and have'
    " PYSPARK_PYTHON name that Python."
)
_EXIT_CODES: Final = {
    Failure.USAGE: ExitCode.USAGE,
    Failure.NOT_FOUND: ExitCode.NOT_FOUND,
    Failure.NO_CONNECTION: ExitCode.NO_CONNECTION,
    Failure.DATA_LOSS: ExitCode.DAMAGED,
    Failure.CONFLICT: ExitCode.EXISTS,
    Failure.FAILED: ExitCode.FAILED,
}
#: The same of what is raised in Spark's processes, by the names of the classes.
_RAISED: Final = {
    "OptionError": ExitCode.USAGE,
    "UnknownTopic": ExitCode.NOT_FOUND,
    "Unavailable": ExitCode.NO_CONNECTION,
    "DataLoss": ExitCode.DAMAGED,
}


@dataclass(frozen=True, slots=True)
class Shared:
    """The options that every job command has."""

    dry_run: DryRunOption = False
    as_json: JsonOption = False
    servers: ServersOption = SERVERS_DEFAULT
    properties: PropertiesOption = None
    master: MasterOption = None
    remote: RemoteOption = None

    def carry_out(self, job: Callable[[RunOptions], Report], *, is_looking: bool = False) -> None:
        """Run a job and print its report; exits with 1 where that says that all is not well. One
        that only looks can be interrupted anywhere."""
        report = perform(job, self, is_looking=is_looking or self.dry_run)
        if self.as_json:
            print_json(report.as_json())
        else:
            print_report(report)
        if not report.is_ok:
            raise typer.Exit(ExitCode.FAILED)


def job_command(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a function as a command of `app`, with the options of `Shared` for its `shared`."""
    added = inspect.signature(Shared, eval_str=True).parameters

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [each for each in own if each.name != "shared"] + [*added.values()]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            shared = Shared(**{name: given.pop(name) for name in added})
            function(**given, shared=shared)

        # Typer asks for both.
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return app.command(epilog=EXIT_CODES_HELP)(guarded(command))

    return register


def perform(
    job: Callable[[RunOptions], Report], shared: Shared, *, is_looking: bool = False
) -> Report:
    """Run a job with its progress on standard error. What it raises becomes a CommandError."""
    require_spark()
    if shared.master is not None and shared.remote is not None:
        raise CommandError(ExitCode.USAGE, "give --master or --remote, not both.")
    stop = threading.Event()
    stopping = nullcontext() if is_looking else _stopping(stop)
    with _explained(), stopping, _shown(shared.as_json) as progress:
        options: RunOptions = {
            "bootstrap_servers": shared.servers,
            "properties": parse_pairs(shared.properties or (), "--property"),
            "master": shared.master,
            "remote": shared.remote,
            "dry_run": shared.dry_run,
            "progress": progress,
            "stop": stop,
        }
        return job(options)


def moment_of(text: str | None, option: str) -> int | None:
    """Milliseconds since 1970 of what `option` was given, if it was."""
    if text is None:
        return None
    try:
        return parse_moment(text, int(time.time() * 1000))
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{option} {error}.") from None


def require_spark() -> None:
    """Fail with what to do where PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise CommandError(
            ExitCode.FAILED, 'this needs Spark: pip install "millstream[spark]", and Java 17.'
        )


def print_report(report: Report) -> None:
    """The outcome, the facts and the tables for people; notes go to standard error."""
    typer.echo(report.outcome)
    if report.facts:
        width = max(map(len, report.facts))
        for name, value in report.facts.items():
            typer.echo(f"  {name:{width}}  {_text(value)}")
    for table in report.tables:
        if table.rows:
            typer.echo()
            print_table(
                [name.upper() for name in table.columns],
                [[_text(cell) for cell in row] for row in table.rows],
                right=[name.upper() for name in table.numeric()],
                title=table.title,
            )
    for each in report.notes:
        note(each)
    if report.is_dry:
        note("A dry run: nothing was changed.")


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else value


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J logs the stack of each interrupt that it meets, and raises it as well."""
    return not str(record.msg).startswith("KeyboardInterrupt")


def spark_failure(text: str) -> CommandError:
    """What Spark says of an error, which may be one of ours that it met in a task."""
    from millstream.spark.error_text import parse_error

    if "DATA_SOURCE_NOT_FOUND" in text:
        return CommandError(ExitCode.FAILED, f"Spark: {_ELSEWHERE}")
    kind, told = parse_error(text.partition("\nDriver stacktrace:")[0])
    if kind in _RAISED:
        return CommandError(_RAISED[kind], told)
    return CommandError(ExitCode.FAILED, told if kind else f"Spark: {told}")


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what jobs, clients and Spark raise into a command's failures, told once."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from millstream.model.error import BrokerError
    from millstream.spark.error import OptionError, ProtocolError, Unavailable

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger().addFilter(_is_no_interrupt)
    try:
        yield
    except JobError as error:
        raise CommandError(_EXIT_CODES[error.kind], str(error)) from None
    except OptionError as error:
        raise CommandError(ExitCode.USAGE, f"{error}; see --property.") from None
    except Unavailable as error:
        raise CommandError(ExitCode.NO_CONNECTION, str(error)) from None
    except (ProtocolError, BrokerError) as error:
        raise CommandError(ExitCode.FAILED, str(error)) from None
    except PySparkException as error:
        raise spark_failure(str(error)) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandError(ExitCode.FAILED, f"{error.filename}: {error.strerror}.") from None


def _stopping(stop: threading.Event) -> AbstractContextManager[None]:
    """Set `stop` at the first Ctrl-C or SIGTERM, and interrupt at the second."""

    def stop_soon() -> None:
        stop.set()
        note("Stopping when what was begun is finished; once more to stop at once.")

    return on_termination(stop_soon, interrupt_at_second=True)


@contextmanager
def _shown(quiet: bool) -> Iterator[Progress]:
    """A line on standard error that follows the steps; nothing where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from millstream.spark.job.report import silent

    console = error_console()
    if quiet or not console.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        line = bar.add_task("starting Spark", total=None)

        def show(step: Step) -> None:
            text = f"{step.what} ({step.unit})" if step.total is not None else step.what
            bar.update(line, description=text, completed=step.done, total=step.total)

        yield show
