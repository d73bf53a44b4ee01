"""`millstream worker run`: worker processes with health and metrics."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.support.failure import guarded
from millstream.cli.support.option import LogLevel, LogLevelOption

if TYPE_CHECKING:
    from millstream.cli.worker.supervisor import WorkerSupervisor


@guarded
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER", help="The worker object, for example app.jobs:worker."
        ),
    ],
    processes: Annotated[
        int,
        typer.Option(
            "--processes", "-p", min=1, max=512, help="Processes; each is a member of the group."
        ),
    ] = 1,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve /healthz, /readyz and /metrics here, for example 127.0.0.1:9645.",
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Restart the workers when Python files change, for development. Files are polled"
            " twice a second.",
        ),
    ] = False,
    reload_folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--reload-dir",
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Watch this directory instead of the current one. Repeatable.",
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.info,
) -> None:
    """Run a worker in processes of their own until SIGTERM or Ctrl-C.

    On either it starts no more jobs, finishes those that run, commits and leaves the group. The
    second signal kills the processes: jobs that were in progress run again later.
    """
    from millstream.cli.worker.reload import SourceWatch
    from millstream.cli.worker.supervisor import WorkerSupervisor

    _start_logging(log_level)
    has_changed: Callable[[], bool] | None = None
    if reload or reload_folders:
        has_changed = SourceWatch(reload_folders or [Path.cwd()]).has_changed
    supervisor = WorkerSupervisor(target, processes, log_level.value, has_changed)
    with ExitStack() as stack:
        if metrics is not None:
            _serve(supervisor, metrics, stack)
        supervisor.run()


def _serve(supervisor: WorkerSupervisor, address: str, stack: ExitStack) -> None:
    from millstream.cli.worker.health import pages
    from millstream.cli.worker.status_server import StatusServer

    server = stack.enter_context(StatusServer(address, pages(supervisor)))
    logging.getLogger(__name__).info("Health and metrics: http://%s/metrics", server.address)


def _start_logging(level: LogLevel) -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        stream=sys.stderr,
        level=level.value.upper(),
        format="%(asctime)s.%(msecs)03dZ %(levelname)s workers: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
