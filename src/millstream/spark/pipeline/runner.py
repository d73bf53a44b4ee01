"""A project's updates, one after the other.

An update reads what its topics hold when it begins, and ends. Who wants to go on makes the next
update: Spark remembers in the project's storage what was read and written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.spark.pipeline.connect_session import Sessions
from millstream.spark.pipeline.flow_progress import FlowProgress, RunProgress
from millstream.spark.pipeline.project import Project
from millstream.spark.pipeline.update import PipelineUpdate, StoppedError, UpdateSelection


class Pipeline:
    """`on_change` is called with a flow whenever something new is known of it, from any thread."""

    def __init__(
        self,
        sessions: Sessions,
        project: Project,
        on_change: Callable[[FlowProgress], None] = lambda flow: None,
    ) -> None:
        self._sessions = sessions
        self._project = project
        self._on_change = on_change
        self._stopping = threading.Event()
        self._present: PipelineUpdate | None = None
        #: Of the last update, also if it was stopped or has failed.
        self.progress = RunProgress()

    def validate(self) -> None:
        """Have Spark resolve the whole graph, and run nothing. Raises PipelineError."""
        with self._sessions() as spark:
            PipelineUpdate(spark, self._project, self._on_change).validate()

    def update(self, selection: UpdateSelection | None = None) -> RunProgress:
        """Raises PipelineError, or StoppedError after `stop`."""
        self.progress = RunProgress()
        with self._sessions() as spark:
            present = self._present = PipelineUpdate(spark, self._project, self._on_change)
            self.progress = present.progress
            if self._stopping.is_set():
                raise StoppedError
            try:
                present.run(selection or UpdateSelection())
            finally:
                self._present = None
        return self.progress

    def stop(self) -> None:
        """End the present update soon, and begin no other; may be called from a signal's
        handler."""
        self._stopping.set()
        if (present := self._present) is not None:
            present.stop()
