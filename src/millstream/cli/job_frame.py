"""What the commands of `millstream job` share: options, progress, the report, exit codes.

A command builds the call of its job and hands it to `carry_out`:

    carry_out(lambda options: archive(topics, path, **options), shared, as_json=as_json)
"""

from __future__ import annotations

import importlib.util
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from millstream.cli.connection import parse_pairs
from millstream.cli.failure import CommandError, ExitCode
from millstream.cli.position import parse_moment
from millstream.cli.terminal import error_console, note, print_json, print_table
from millstream.spark.job.failure import Failure, JobError

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

_EXIT_CODES: Final = {
    Failure.USAGE: ExitCode.USAGE,
    Failure.NOT_FOUND: ExitCode.NOT_FOUND,
    Failure.NO_CONNECTION: ExitCode.NO_CONNECTION,
    Failure.DATA_LOSS: ExitCode.DAMAGED,
    Failure.CONFLICT: ExitCode.EXISTS,
    Failure.FAILED: ExitCode.FAILED,
}


@dataclass(frozen=True, slots=True)
class Shared:
    """The options that every job command has."""

    servers: str
    properties: list[str] | None = None
    master: str | None = None
    remote: str | None = None
    dry_run: bool = False


def carry_out(job: Callable[[RunOptions], Report], shared: Shared, *, as_json: bool) -> None:
    """Run a job and print its report; exits with 1 where the report says that all is not well."""
    report = perform(job, shared, quiet=as_json)
    if as_json:
        print_json(report.as_json())
    else:
        print_report(report)
    if not report.is_ok:
        raise typer.Exit(ExitCode.FAILED)


def perform(job: Callable[[RunOptions], Report], shared: Shared, *, quiet: bool) -> Report:
    """Run a job with its progress on standard error. What it raises becomes a CommandError."""
    require_spark()
    if shared.master is not None and shared.remote is not None:
        raise CommandError(ExitCode.USAGE, "give --master or --remote, not both.")
    stop = threading.Event()
    with _explained(), _stopping(stop), _shown(quiet) as progress:
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


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what jobs, clients and Spark raise into a command's failures."""
    from pyspark.errors import PySparkException

    from millstream.model.error import BrokerError
    from millstream.spark.error import OptionError, SparkSourceError, Unavailable

    try:
        yield
    except JobError as error:
        raise CommandError(_EXIT_CODES[error.kind], str(error)) from None
    except OptionError as error:
        raise CommandError(ExitCode.USAGE, f"{error}; see --property.") from None
    except Unavailable as error:
        raise CommandError(ExitCode.NO_CONNECTION, str(error)) from None
    except (SparkSourceError, BrokerError) as error:
        raise CommandError(ExitCode.FAILED, str(error)) from None
    except PySparkException as error:
        text = str(error).partition("\n\nJVM stacktrace")[0].strip()
        if "DATA_SOURCE_NOT_FOUND" in text:
            text = (
                'its Python does not have Millstream: install "millstream[spark]" where Spark runs,'
                " and have PYSPARK_PYTHON name that Python."
            )
        raise CommandError(ExitCode.FAILED, f"Spark: {text}") from None


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Have the first Ctrl-C or SIGTERM set `stop`, and the next one interrupt."""

    def on_signal(number: int, frame: Any) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()
        note("Stopping when what was begun is finished; once more to stop at once.")

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


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
