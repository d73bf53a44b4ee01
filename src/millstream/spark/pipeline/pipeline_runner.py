"""Runs the updates of a project, one after the other.

An update reads the records that its topics hold at its start, and then ends. The next update
continues from the checkpoints in the project's storage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.spark.pipeline.connect_session import Sessions
from millstream.spark.pipeline.flow_progress import FlowProgress, RunProgress
from millstream.spark.pipeline.project import Project
from millstream.spark.pipeline.update import PipelineUpdate, StoppedError, UpdateSelection


class Pipeline:
    """Runs updates of a project. `on_change` is called from any thread with each changed flow."""

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
        #: The progress of the last update, even if it was stopped or failed.
        self.progress = RunProgress()

    def validate(self) -> None:
        """Resolve the graph without running it. Raises PipelineError."""
        with self._sessions() as spark:
            PipelineUpdate(spark, self._project, self._on_change).validate()

    def update(self, selection: UpdateSelection | None = None) -> RunProgress:
        """Run one update. Raises PipelineError, or StoppedError after `stop`."""
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
        """Stop the present update and start no other. May be called from a signal handler."""
        self._stopping.set()
        if (present := self._present) is not None:
            present.stop()
