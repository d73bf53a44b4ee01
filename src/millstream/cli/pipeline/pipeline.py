"""`millstream pipeline`: init, validate, run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import (
    EXIT_CODES_HELP,
    CommandError,
    ExitCode,
    guarded,
)
from millstream.cli.support.option import FollowOption
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import Duration, duration_option
from millstream.cli.support.reachability import connect_error, parse_address, require_broker
from millstream.cli.support.terminal import JsonOption, format_duration, note, print_json
from millstream.env.termination import on_termination
from millstream.model.bootstrap import SERVERS_DEFAULT, SERVERS_VARIABLE

if TYPE_CHECKING:
    from millstream.cli.pipeline.pipeline_view import FlowView
    from millstream.spark.pipeline.pipeline_runner import Pipeline
    from millstream.spark.pipeline.project import Project
    from millstream.spark.pipeline.update import PipelineError, UpdateSelection

app = typer.Typer(
    no_args_is_help=True,
    help="Run Spark Declarative Pipelines that read and write topics. Needs Spark.",
)

_HERE: Final = Path()
_PAUSE: Final = Duration.parse("1s")
#: The default port of Spark Connect.
_REMOTE_PORT: Final = 15002
_ProjectArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The project's folder, or its spark-pipeline.yml.")
]
_ServersOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar=SERVERS_VARIABLE,
        metavar="HOST:PORT,...",
        help="Brokers, instead of those in the project.",
    ),
]
_MasterOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark's master: local[*] (the default), spark://..."),
]
_RemoteOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Run on this Spark Connect server: sc://HOST:PORT."),
]
_ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting. Repeatable."),
]


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    name: Annotated[
        str | None, typer.Option(help="The pipeline's name; by default the folder's.")
    ] = None,
    servers: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            "-b",
            envvar=SERVERS_VARIABLE,
            metavar="HOST:PORT,...",
            help="Brokers of the project's topics.",
        ),
    ] = SERVERS_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Create a working project: input topics, tables and views, an output topic, dead letters."""
    from millstream.spark.pipeline import project

    name = name or folder.resolve().name
    try:
        written = project.make(folder, name, servers)
    except project.ProjectExistsError as error:
        raise CommandError(ExitCode.EXISTS, str(error)) from None
    if as_json:
        print_json({"pipeline": name, "files": [str(path) for path in written]})
        return
    for path in written:
        typer.echo(str(path))
    note(
        "Next: create the topics that it reads and writes,\n"
        f"    millstream topic create orders -b {servers}\n"
        f"    millstream topic create large-orders -b {servers}\n"
        f"    millstream topic create orders.dlq -b {servers}\n"
        f"then `millstream pipeline run {folder}`."
    )


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def validate(
    folder: _ProjectArgument = _HERE,
    servers: _ServersOption = None,
    master: _MasterOption = None,
    remote: _RemoteOption = None,
    conf: _ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let Spark resolve every table, view and flow of a project without running it."""
    with _pipeline_failures(remote), progress("starting Spark") as shown:
        project = _project(folder, servers, conf)
        with _pipeline(project, master, remote, lambda flow: None) as pipeline:
            shown.update(what="resolving flows")
            pipeline.validate()
    if as_json:
        print_json({"pipeline": project.spec.name, "result": "valid"})
    else:
        typer.echo(f"{project.spec.name}: valid")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def run(
    folder: _ProjectArgument = _HERE,
    refresh: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Update only this table or topic. Repeatable."),
    ] = None,
    full_refresh: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Rebuild this table from all input. Repeatable."),
    ] = None,
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="Rebuild all tables.")
    ] = False,
    follow: FollowOption = False,
    pause: Annotated[
        Duration, duration_option("--pause", help="Time between updates with --follow.")
    ] = _PAUSE,
    servers: _ServersOption = None,
    master: _MasterOption = None,
    remote: _RemoteOption = None,
    conf: _ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Update a project's tables and topics, and show the progress of its flows.

    Ctrl-C and SIGTERM stop it safely: the next run continues where it stopped."""
    from millstream.cli.pipeline.pipeline_view import FlowView
    from millstream.spark.pipeline.project import SERVERS_KEY

    view = FlowView()
    with _pipeline_failures(remote), _summary(view, as_json):
        selection = _selection(refresh, full_refresh, full_refresh_all)
        project = _project(folder, servers, conf)
        if remote is None and (master or "local").startswith("local"):
            require_broker(project.spec.configuration.get(SERVERS_KEY, ""))
        note(f"{project.spec.name}: {'starting Spark' if remote is None else f'on {remote}'}")
        with _pipeline(project, master, remote, view.show) as pipeline:
            stop_requested = threading.Event()
            with _stopping(stop_requested, pipeline):
                _update(pipeline, selection, pause if follow else None, stop_requested, view)
    if not follow and not view.updates:
        raise CommandError(
            ExitCode.INTERRUPTED, "stopped before everything was up to date; run it again."
        )


def _update(
    pipeline: Pipeline,
    selection: UpdateSelection,
    pause_s: float | None,
    stop_requested: threading.Event,
    view: FlowView,
) -> None:
    """Run one update, or repeat updates if `pause_s` is given."""
    from millstream.spark.pipeline.update import StoppedError, UpdateSelection

    while not stop_requested.is_set():
        start = time.monotonic()
        try:
            pipeline.update(selection)
        except StoppedError:
            return
        finally:
            view.add(pipeline.progress)
        view.updates += 1
        note(f"up to date after {format_duration(time.monotonic() - start)}")
        if pause_s is None:
            return
        # Only the first update rebuilds tables.
        selection = UpdateSelection(refresh=selection.refresh + selection.full_refresh)
        stop_requested.wait(pause_s)


@contextmanager
def _summary(view: FlowView, as_json: bool) -> Iterator[None]:
    """Print the summary of all flows at the end, also if the run failed."""
    try:
        yield
    finally:
        if as_json:
            print_json(view.summary())
        elif view:
            view.print()


def _project(folder: Path, servers: str | None, conf: Sequence[str] | None) -> Project:
    from millstream.spark.pipeline import project

    given = parse_pairs(conf or (), "--conf")
    if servers is not None:
        given[project.SERVERS_KEY] = servers
    return project.find(folder, given)


def _require_remote(remote: str) -> None:
    if not remote.startswith("sc://"):
        raise CommandError(ExitCode.USAGE, f"--remote {remote!r} is not sc://HOST:PORT.")
    address = remote.removeprefix("sc://").partition("/")[0]
    if reason := connect_error(*parse_address(address, _REMOTE_PORT)):
        raise CommandError(
            ExitCode.NO_CONNECTION, f"no response from Spark Connect at {remote}: {reason}."
        )


def _selection(
    refresh: list[str] | None, full_refresh: list[str] | None, full_refresh_all: bool
) -> UpdateSelection:
    from millstream.spark.pipeline.update import UpdateSelection

    try:
        return UpdateSelection(tuple(refresh or ()), tuple(full_refresh or ()), full_refresh_all)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--full-refresh-all: {error}") from None


@contextmanager
def _pipeline(
    project: Project, master: str | None, remote: str | None, on_change: Callable[[Any], None]
) -> Iterator[Pipeline]:
    from millstream.spark.pipeline.connect_session import connect_sessions
    from millstream.spark.pipeline.pipeline_runner import Pipeline

    if master is not None and remote is not None:
        raise CommandError(ExitCode.USAGE, "give --master or --remote, not both.")
    if remote is not None:
        _require_remote(remote)
    config = project.static_config()
    with connect_sessions(
        project.spec.name, master=master, remote=remote, config=config
    ) as sessions:
        yield Pipeline(sessions, project, on_change)


@contextmanager
def _pipeline_failures(remote: str | None) -> Iterator[None]:
    """Turn exceptions of projects and Spark into the command's failure."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise CommandError(
            ExitCode.FAILED, 'pipelines need Spark: pip install "millstream[spark]".'
        ) from None
    from pyspark.errors import PySparkException

    from millstream.spark.error_text import error_sentence
    from millstream.spark.pipeline import project
    from millstream.spark.pipeline.update import PipelineError

    try:
        yield
    except project.ProjectMissingError as error:
        raise CommandError(ExitCode.NOT_FOUND, str(error)) from None
    except project.ProjectError as error:
        raise CommandError(ExitCode.USAGE, str(error)) from None
    except PipelineError as error:
        raise _failure(error) from None
    except PySparkException as error:
        if error.getCondition() == "JAVA_GATEWAY_EXITED":
            raise CommandError(
                ExitCode.FAILED,
                "Spark did not start: it needs Java 17, on PATH or in JAVA_HOME.",
            ) from None
        if remote is None:
            raise CommandError(ExitCode.FAILED, error_sentence(str(error))) from None
        raise CommandError(
            ExitCode.NO_CONNECTION, f"Spark at {remote}: {error_sentence(str(error))}"
        ) from None


def _failure(error: PipelineError) -> CommandError:
    from millstream.spark.error import Unavailable, UnknownTopic

    if UnknownTopic.__name__ in error.errors:
        return CommandError(
            ExitCode.NOT_FOUND, f"{error}\n`millstream topic create TOPIC` creates a topic."
        )
    is_unavailable = Unavailable.__name__ in error.errors
    return CommandError(ExitCode.NO_CONNECTION if is_unavailable else ExitCode.FAILED, str(error))


def _stopping(stop_requested: threading.Event, pipeline: Pipeline) -> AbstractContextManager[None]:
    """Stop the run at the first Ctrl-C or SIGTERM, and the command at the second."""

    def stop() -> None:
        stop_requested.set()
        pipeline.stop()
        note("stopping; press again to stop at once")

    return on_termination(stop, interrupt_at_second=True)
