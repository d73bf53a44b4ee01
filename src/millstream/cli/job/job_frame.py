"""The shared parts of `millstream job` commands: options, progress, the report, exit codes.

A command declares `shared` for the common options and passes the call of its job to it:

    @job_command(app)
    def archive(topics: ..., to: ..., *, shared: Shared) -> None:
        shared.run_job(lambda options: job(topics, to, **options))
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import threading
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
from millstream.cli.support.option import DryRunOption
from millstream.cli.support.position import parse_moment_option
from millstream.cli.support.progress import progress
from millstream.cli.support.reachability import require_broker
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
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
        help="Spark's master: local[*] (the default), local[4], spark://HOST:7077, k8s://....",
        rich_help_panel="Spark",
    ),
]
RemoteOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--remote",
        metavar="sc://HOST:PORT",
        help="Run on this Spark Connect server instead of a master.",
        rich_help_panel="Spark",
    ),
]
AllowGapsOption: TypeAlias = Annotated[
    bool, typer.Option("--allow-gaps", help="Continue if retention has deleted records.")
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only records since then: 10m, 2h, a date."),
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only records before then.")
]

#: PySpark's loggers that repeat its exceptions.
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
#: The failure if the Python of Spark's workers lacks Millstream.
_NOT_INSTALLED: Final = (
    'its Python does not have Millstream: install "millstream[spark]" where Spark runs, and set'
    " PYSPARK_PYTHON to that Python."
)
_EXIT_CODES: Final = {
    Failure.USAGE: ExitCode.USAGE,
    Failure.NOT_FOUND: ExitCode.NOT_FOUND,
    Failure.NO_CONNECTION: ExitCode.NO_CONNECTION,
    Failure.DATA_LOSS: ExitCode.DAMAGED,
    Failure.CONFLICT: ExitCode.EXISTS,
    Failure.FAILED: ExitCode.FAILED,
}
#: Exit codes of exceptions in Spark's processes, by class name.
_EXIT_CODES_BY_NAME: Final = {
    "SettingError": ExitCode.USAGE,
    "OptionError": ExitCode.USAGE,
    "UnknownTopic": ExitCode.NOT_FOUND,
    "Unavailable": ExitCode.NO_CONNECTION,
    "DataLoss": ExitCode.DAMAGED,
}


@dataclass(frozen=True, slots=True)
class Shared:
    """The options of every job command."""

    dry_run: DryRunOption = False
    as_json: JsonOption = False
    servers: ServersOption = SERVERS_DEFAULT
    properties: PropertiesOption = None
    master: MasterOption = None
    remote: RemoteOption = None

    def run_job(self, job: Callable[[RunOptions], Report], *, is_read_only: bool = False) -> None:
        """Run a job and print its report. Exit with 1 if the report is not ok.

        A read-only job can be interrupted anywhere."""
        require_spark()
        # The job itself would wait for a minute.
        require_broker(self.servers)
        report = perform(job, self, is_read_only=is_read_only or self.dry_run)
        if self.as_json:
            print_json(report.as_json())
        else:
            print_report(report)
        if not report.is_ok:
            raise typer.Exit(ExitCode.FAILED)


def job_command(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command of `app`, with the options of `Shared` for `shared`."""
    added = inspect.signature(Shared, eval_str=True).parameters

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [each for each in own if each.name != "shared"] + [*added.values()]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            shared = Shared(**{name: given.pop(name) for name in added})
            function(**given, shared=shared)

        # Typer reads both.
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return app.command(epilog=EXIT_CODES_HELP)(guarded(command))

    return register


def perform(
    job: Callable[[RunOptions], Report], shared: Shared, *, is_read_only: bool = False
) -> Report:
    """Run a job with its progress on standard error. Its exceptions become CommandErrors."""
    require_spark()
    if shared.master is not None and shared.remote is not None:
        raise CommandError(ExitCode.USAGE, "give --master or --remote, not both.")
    stop = threading.Event()
    stopping = nullcontext() if is_read_only else _stopping(stop)
    with _job_failures(), stopping, _shown() as on_step:
        options: RunOptions = {
            "bootstrap_servers": shared.servers,
            "properties": parse_pairs(shared.properties or (), "--property"),
            "master": shared.master,
            "remote": shared.remote,
            "dry_run": shared.dry_run,
            "progress": on_step,
            "stop": stop,
        }
        return job(options)


def moment_of(text: str | None, option: str) -> int | None:
    """Return the timestamp of an optional time option."""
    return None if text is None else parse_moment_option(text, option)


def require_spark() -> None:
    """Fail with an instruction if PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise CommandError(
            ExitCode.FAILED, 'this needs Spark: pip install "millstream[spark]", and Java 17.'
        )


def print_report(report: Report) -> None:
    """Print the outcome, the facts and the tables. Notes go to standard error."""
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


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    """Drop the stack that Py4J logs for each interrupt, which it also raises."""
    return not str(record.msg).startswith("KeyboardInterrupt")


def spark_failure(text: str) -> CommandError:
    """Return the failure for an error of Spark, which may wrap one of Millstream's."""
    from millstream.spark.error_text import parse_error

    if "DATA_SOURCE_NOT_FOUND" in text:
        return CommandError(ExitCode.FAILED, f"Spark: {_NOT_INSTALLED}")
    kind, message = parse_error(text.partition("\nDriver stacktrace:")[0])
    if kind in _EXIT_CODES_BY_NAME:
        return CommandError(_EXIT_CODES_BY_NAME[kind], message)
    return CommandError(ExitCode.FAILED, message if kind else f"Spark: {message}")


@contextmanager
def _job_failures() -> Iterator[None]:
    """Turn exceptions of jobs, clients and Spark into the command's failure."""
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    from millstream.model.error import BrokerError
    from millstream.spark.error import ProtocolError, SettingError, Unavailable

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger().addFilter(_is_not_interrupt)
    try:
        yield
    except JobError as error:
        raise CommandError(_EXIT_CODES[error.kind], str(error)) from None
    except SettingError as error:
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
        note("Stopping after the current batch; press again to stop at once.")

    return on_termination(stop_soon, interrupt_at_second=True)


@contextmanager
def _shown() -> Iterator[Progress]:
    """Show the steps on standard error."""
    with progress("starting Spark") as shown:

        def show(step: Step) -> None:
            text = f"{step.what} ({step.unit})" if step.total is not None else step.what
            shown.restart(text, done=step.done, total=step.total)

        yield show
