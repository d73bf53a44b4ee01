"""`millstream pipeline`: init, validate, run."""

from __future__ import annotations

import socket
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
    no_connection,
)
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
    help="Spark Declarative Pipelines with topics in and out. Needs millstream[spark].",
)

_HERE: Final = Path()
_CONNECT_S_MAX: Final = 10.0
#: Of a Spark Connect server, unless another one is given.
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
        help="Brokers, in place of those that the project names.",
    ),
]
_MasterOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where Spark runs: local[*] (the default), spark://..."),
]
_RemoteOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A Spark Connect server instead: sc://HOST:PORT."),
]
_ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark. Repeatable."),
]
_TablesOption = Annotated[list[str] | None, typer.Option(metavar="TABLE")]


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    name: Annotated[
        str | None, typer.Option(help="The pipeline's name; else the folder's.")
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
) -> None:
    """Write a project that works: topics in, tables and views, a topic out, dead letters."""
    from millstream.spark.pipeline import project

    try:
        written = project.make(folder, name or folder.resolve().name, servers)
    except project.ProjectExistsError as error:
        raise CommandError(ExitCode.EXISTS, str(error)) from None
    for path in written:
        typer.echo(str(path))
    note(
        "Next: make the topics that it reads and writes,\n"
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
) -> None:
    """Have Spark resolve every table, view and flow of a project, and run nothing."""
    with _explained(remote):
        project = _project(folder, servers, conf)
        with _pipeline(project, master, remote, lambda flow: None) as pipeline:
            pipeline.validate()
    typer.echo(f"{project.spec.name}: valid")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def run(
    folder: _ProjectArgument = _HERE,
    refresh: _TablesOption = None,
    full_refresh: _TablesOption = None,
    full_refresh_all: Annotated[bool, typer.Option(help="Begin all tables anew.")] = False,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until stopped, update after update.")
    ] = False,
    pause: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Between updates.")
    ] = 1.0,
    servers: _ServersOption = None,
    master: _MasterOption = None,
    remote: _RemoteOption = None,
    conf: _ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a project's tables and topics up to date, and show how its flows are doing.

    Ctrl-C and SIGTERM end it at once and harm nothing: the next run goes on from there."""
    from millstream.cli.pipeline.pipeline_view import FlowView

    view = FlowView()
    with _explained(remote), _summed_up(view, as_json):
        selection = _selection(refresh, full_refresh, full_refresh_all)
        project = _project(folder, servers, conf)
        if remote is None and (master or "local").startswith("local"):
            _require_broker(project)
        note(f"{project.spec.name}: {'starting Spark' if remote is None else f'on {remote}'}")
        with _pipeline(project, master, remote, view.show) as pipeline:
            ending = threading.Event()
            with _stopping(ending, pipeline):
                _update(pipeline, selection, pause if continuous else None, ending, view)
    if not continuous and not view.updates:
        raise CommandError(ExitCode.INTERRUPTED, "stopped before all was up to date; run it again.")


def _update(
    pipeline: Pipeline,
    selection: UpdateSelection,
    pause_s: float | None,
    ending: threading.Event,
    view: FlowView,
) -> None:
    """Once, or as often as there is time for."""
    from millstream.spark.pipeline.update import StoppedError, UpdateSelection

    while not ending.is_set():
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
        # Only the first update begins tables anew.
        selection = UpdateSelection(refresh=selection.refresh + selection.full_refresh)
        ending.wait(pause_s)


@contextmanager
def _summed_up(view: FlowView, as_json: bool) -> Iterator[None]:
    """What became of each flow, also where the run failed; nothing where no flow was heard of."""
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


def _require_broker(project: Project) -> None:
    """Where nobody listens, that is known at once, and need not be waited for."""
    from millstream.spark.pipeline.project import SERVERS_KEY

    servers = project.spec.configuration.get(SERVERS_KEY, "")
    refusals = [_refusal(*_address(each)) for each in servers.split(",") if each]
    if refusals and all(refusals):
        raise no_connection(servers, refusals[0])


def _require_remote(remote: str) -> None:
    if not remote.startswith("sc://"):
        raise CommandError(ExitCode.USAGE, f"--remote {remote!r} is not sc://HOST:PORT.")
    address = remote.removeprefix("sc://").partition("/")[0]
    if refusal := _refusal(*_address(address, _REMOTE_PORT)):
        raise CommandError(
            ExitCode.NO_CONNECTION, f"no response from Spark Connect at {remote}: {refusal}."
        )


def _address(text: str, port: int = 0) -> tuple[str, int]:
    """Host and port, which is 0 where it is no number."""
    host, colon, number = text.strip().rpartition(":")
    if not colon:
        return text.strip(), port
    return host.strip("[]"), int(number) if number.isdecimal() else 0


def _refusal(host: str, port: int) -> str:
    """Why there is nobody to connect to; empty where there is somebody."""
    try:
        socket.create_connection((host, port), _CONNECT_S_MAX).close()
    except OSError as error:
        return str(error)
    return ""


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
def _explained(remote: str | None) -> Iterator[None]:
    """Turn what projects and Spark raise into a command's failures."""
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
            ExitCode.NOT_FOUND, f"{error}\n`millstream topic create TOPIC` makes a topic."
        )
    no_answer = Unavailable.__name__ in error.errors
    return CommandError(ExitCode.NO_CONNECTION if no_answer else ExitCode.FAILED, str(error))


def _stopping(ending: threading.Event, pipeline: Pipeline) -> AbstractContextManager[None]:
    """End the run at the first Ctrl-C or SIGTERM, and the command at the second."""

    def stop() -> None:
        ending.set()
        pipeline.stop()
        note("stopping; once more to stop at once")

    return on_termination(stop, interrupt_at_second=True)
