"""One update of a project: sends its declarations to Spark, runs them, and tracks progress."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.model.error import MillstreamError, UsageError
from millstream.spark.error_text import error_sentence, parse_error
from millstream.spark.pipeline.flow_progress import FlowProgress, RunProgress
from millstream.spark.pipeline.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long to wait for the last reports, which arrive after the end of the run.
_REPORT_S_MAX: Final = 5.0
_INTERRUPT_S: Final = 0.5


class PipelineError(MillstreamError):
    """A pipeline is invalid, or an update failed. The message is for the user.

    `errors` has the class names of Millstream's errors with which flows failed."""

    def __init__(self, message: str, errors: Collection[str] = ()) -> None:
        super().__init__(message)
        self.errors = frozenset(errors)


class StoppedError(MillstreamError):
    """The update was stopped before its end. The next update continues."""


@dataclass(frozen=True, slots=True)
class UpdateSelection:
    """The tables to update (default: all), and the tables to recompute from the start."""

    refresh: tuple[str, ...] = ()
    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False

    def __post_init__(self) -> None:
        if self.full_refresh_all and (self.refresh or self.full_refresh):
            raise UsageError("a full refresh of all tables excludes naming tables.")


class PipelineUpdate:
    """One update of a project.

    It needs its own session, because a session keeps every graph that ran in it. `on_change` is
    called from any thread with each flow that changed."""

    def __init__(
        self, spark: SparkSession, project: Project, on_change: Callable[[FlowProgress], None]
    ) -> None:
        self._spark: Any = spark
        self._project = project
        self._on_change = on_change
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.progress = RunProgress()
        #: The ids of running queries.
        self._queries: set[str] = set()
        self._idle = threading.Condition(self._lock)

    def validate(self) -> None:
        """Resolve the graph without running it. Raises PipelineError."""
        self._run(UpdateSelection(), dry=True)

    def run(self, selection: UpdateSelection) -> None:
        """Run the update. Raises PipelineError, or StoppedError after `stop`."""
        from pyspark.errors import PySparkException

        listener = _listener(self)
        self._spark.streams.addListener(listener)
        try:
            self._run(selection, dry=False)
            self._check_selection(selection)
            with self._idle:
                self._idle.wait_for(lambda: not self._queries, _REPORT_S_MAX)
        finally:
            self._ended.set()
            # If Spark is gone, the run has already failed with that error.
            with contextlib.suppress(PySparkException):
                self._spark.streams.removeListener(listener)

    def stop(self) -> None:
        """Stop the update. May be called from a signal handler."""
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._interrupt, daemon=True).start()

    def _interrupt(self) -> None:
        """Interrupt repeatedly, because Spark cannot interrupt an operation before its start."""
        from pyspark.errors import PySparkException

        # If Spark is gone, the run fails with that error.
        with contextlib.suppress(PySparkException):
            while not self._ended.is_set():
                self._spark.interruptAll()
                self._ended.wait(_INTERRUPT_S)

    def _run(self, selection: UpdateSelection, *, dry: bool) -> None:
        from pyspark.errors import PySparkException

        try:
            self._apply_results(self._start_run(self._register(), selection, dry=dry))
        except (PySparkException, PipelineError) as error:
            if self._stopping.is_set():
                with self._lock:
                    self.progress.stop()
                raise StoppedError from error
            if isinstance(error, PipelineError):
                raise
            raise self._failure(error) from error

    def _start_run(
        self, graph: str, selection: UpdateSelection, *, dry: bool
    ) -> Iterator[dict[str, Any]]:
        """Start a run of the graph. Return Spark's messages about it."""
        from pyspark.pipelines.spark_connect_pipeline import start_run

        return start_run(
            self._spark,
            graph,
            full_refresh=selection.full_refresh,
            full_refresh_all=selection.full_refresh_all,
            refresh=selection.refresh,
            dry=dry,
            storage=self._project.spec.storage,
        )

    def _register(self) -> str:
        """Register the project's declarations with Spark. Return the id of the graph."""
        from pyspark.pipelines.cli import register_definitions
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

        path, spec, conf = self._project.path, self._project.spec, self._spark.conf
        # Spark already has its start settings, and rejects changes of some of them.
        config = {
            name: value
            for name, value in spec.configuration.items()
            if conf.get(name, None) != value
        }
        for name, value in config.items():
            conf.set(name, value)
        graph = create_dataflow_graph(self._spark, spec.catalog, spec.database, config)
        registry = _registry(self._spark, graph)
        try:
            # Spark prints the names of the files.
            with contextlib.redirect_stdout(io.StringIO()):
                register_definitions(path, registry, spec, self._spark, graph)
        except PipelineError:
            raise
        except Exception as error:
            raise PipelineError(_locate_error(error, path.parent)) from error
        return graph

    def _apply_results(self, results: Iterator[dict[str, Any]]) -> None:
        for result in results:
            if "pipeline_event_result" in result:
                with self._lock:
                    flow = self.progress.apply_message(
                        result["pipeline_event_result"].event.message
                    )
                if flow is not None:
                    self._on_change(flow)

    def _check_selection(self, selection: UpdateSelection) -> None:
        """Raise PipelineError if the selection matches no flow. Spark accepts any name."""
        if all(each.state == "excluded" for each in self.progress.flows.values()):
            names = ", ".join(selection.refresh + selection.full_refresh)
            raise PipelineError(f"no flow of the project writes to {names or 'anything'}")

    def _failure(self, error: Exception) -> PipelineError:
        with self._lock:
            failed = list(self.progress.failed)
        if not failed:
            name, message = parse_error(str(error))
            return PipelineError(message, {name})
        lines = [f"flow {each.name}: {each.message}" for each in failed]
        return PipelineError("\n".join(lines), {each.error for each in failed})

    def started(self, query: str) -> None:
        with self._idle:
            self._queries.add(query)

    def reported(self, progress: dict[str, Any]) -> None:
        with self._idle:
            flow = self.progress.apply_report(progress)
        if flow is not None:
            self._on_change(flow)

    def ended(self, query: str) -> None:
        with self._idle:
            self._queries.discard(query)
            self._idle.notify_all()


def _listener(update: PipelineUpdate) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            update.started(str(event.runId))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            update.reported(json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """Ignore idle queries."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            update.ended(str(event.runId))

    return Listener()


def _registry(spark: Any, graph: str) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )

    class Registry(SparkConnectGraphElementRegistry):
        """Registers declarations with Spark, and names the SQL file in errors."""

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            try:
                super().register_sql(sql_text, file_path)
            except PySparkException as error:
                raise PipelineError(f"{file_path}: {error_sentence(str(error))}") from error

    return Registry(spark, graph)


def _locate_error(error: Exception, folder: Path) -> str:
    """Return the error with the line of the project's files that raised it."""
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
    ]
    text = f"{type(error).__name__}: {error_sentence(str(error))}"
    if not lines:
        return text
    name = Path(lines[-1].filename).relative_to(folder)
    return f"{name}, line {lines[-1].lineno}: {text}"
