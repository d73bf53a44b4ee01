"""One update of a project: its declarations sent to Spark, a run, and what Spark tells of it."""

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

from millstream.spark.error_text import error_sentence, parse_error
from millstream.spark.pipeline.flow_progress import FlowProgress, RunProgress
from millstream.spark.pipeline.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The last reports come by another way than the end of the run, and a little later.
_REPORT_S_MAX: Final = 5.0
_INTERRUPT_S: Final = 0.5


class PipelineError(Exception):
    """A pipeline is wrong, or a run of it failed; a sentence for a person.

    `errors` are the classes of Millstream's own that flows failed with, by name."""

    def __init__(self, message: str, errors: Collection[str] = ()) -> None:
        super().__init__(message)
        self.errors = frozenset(errors)


class StoppedError(Exception):
    """The run was asked to stop before it was done. The next one does the rest."""


@dataclass(frozen=True, slots=True)
class UpdateSelection:
    """Which tables to update: all, unless some are named; and which to begin anew."""

    refresh: tuple[str, ...] = ()
    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False

    def __post_init__(self) -> None:
        if self.full_refresh_all and (self.refresh or self.full_refresh):
            raise ValueError("all tables are to begin anew, so none can be named besides.")


class PipelineUpdate:
    """One run of a project in a session, which is for it alone: a session keeps all graphs that
    were ever run in it. `on_change` is called with a flow whenever something new is known of it,
    from any thread."""

    def __init__(
        self, spark: SparkSession, project: Project, on_change: Callable[[FlowProgress], None]
    ) -> None:
        self._spark: Any = spark
        self._project = project
        self._on_change = on_change
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.progress = RunProgress()
        #: Queries that have begun and not ended, by id.
        self._queries: set[str] = set()
        self._idle = threading.Condition(self._lock)

    def validate(self) -> None:
        """Have Spark resolve the whole graph, and run nothing. Raises PipelineError."""
        self._run(UpdateSelection(), dry=True)

    def run(self, selection: UpdateSelection) -> None:
        """Raises PipelineError, or StoppedError after `stop`."""
        from pyspark.errors import PySparkException

        listener = _listener(self)
        self._spark.streams.addListener(listener)
        try:
            self._run(selection, dry=False)
            self._check_chosen(selection)
            with self._idle:
                self._idle.wait_for(lambda: not self._queries, _REPORT_S_MAX)
        finally:
            self._over.set()
            # Where Spark is gone there is nothing to take it from, and the run has failed of that.
            with contextlib.suppress(PySparkException):
                self._spark.streams.removeListener(listener)

    def stop(self) -> None:
        """End the run soon; may be called from a signal's handler."""
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._interrupt, daemon=True).start()

    def _interrupt(self) -> None:
        """Until it is over: what has not quite begun can't be interrupted."""
        from pyspark.errors import PySparkException

        # Where Spark is gone the run fails of that.
        with contextlib.suppress(PySparkException):
            while not self._over.is_set():
                self._spark.interruptAll()
                self._over.wait(_INTERRUPT_S)

    def _run(self, selection: UpdateSelection, *, dry: bool) -> None:
        from pyspark.errors import PySparkException

        try:
            self._hear(self._begun(self._declared(), selection, dry=dry))
        except (PySparkException, PipelineError) as error:
            if self._stopping.is_set():
                with self._lock:
                    self.progress.stop()
                raise StoppedError from error
            if isinstance(error, PipelineError):
                raise
            raise self._failure(error) from error

    def _begun(
        self, graph: str, selection: UpdateSelection, *, dry: bool
    ) -> Iterator[dict[str, Any]]:
        """A run of the graph; what Spark tells of it."""
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

    def _declared(self) -> str:
        """The graph that the project's files declare, on Spark's side; its id."""
        from pyspark.pipelines.cli import register_definitions
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

        path, spec, conf = self._project.path, self._project.spec, self._spark.conf
        # What Spark was started with is there, and some of it may not even be set again.
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
            # Spark prints which files it reads.
            with contextlib.redirect_stdout(io.StringIO()):
                register_definitions(path, registry, spec, self._spark, graph)
        except PipelineError:
            raise
        except Exception as error:
            raise PipelineError(_blame(error, path.parent)) from error
        return graph

    def _hear(self, results: Iterator[dict[str, Any]]) -> None:
        for result in results:
            if "pipeline_event_result" in result:
                with self._lock:
                    flow = self.progress.hear(result["pipeline_event_result"].event.message)
                if flow is not None:
                    self._on_change(flow)

    def _check_chosen(self, selection: UpdateSelection) -> None:
        """Spark takes any name, and then has nothing to do."""
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
            flow = self.progress.report(progress)
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
            """Between batches there is nothing to tell."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            update.ended(str(event.runId))

    return Listener()


def _registry(spark: Any, graph: str) -> Any:
    from pyspark.errors import PySparkException
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )

    class Registry(SparkConnectGraphElementRegistry):
        """Takes what files declare to Spark, and says in which file of SQL something is wrong."""

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            try:
                super().register_sql(sql_text, file_path)
            except PySparkException as error:
                raise PipelineError(f"{file_path}: {error_sentence(str(error))}") from error

    return Registry(spark, graph)


def _blame(error: Exception, folder: Path) -> str:
    """What went wrong, and in which line of the project's files."""
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
    ]
    told = f"{type(error).__name__}: {error_sentence(str(error))}"
    if not lines:
        return told
    name = Path(lines[-1].filename).relative_to(folder)
    return f"{name}, line {lines[-1].lineno}: {told}"
