"""Millstream on Spark: a source, an exactly-once sink, decoding, pipelines and jobs.

This package owns everything that runs inside Spark. Connections to brokers belong to
`millstream.protocol`, the commands to `millstream.cli`. Public names are imported on first use,
because executors do not need them.

Importing this package sets the environment variable PYSPARK_PYTHON to this interpreter, unless it
is set. Spark reads it when it creates a session. Otherwise Spark starts its workers with the
`python3` on the path, which is another interpreter if the virtual environment is not activated, and
that interpreter does not have the data source.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millstream.spark.dead_letter import dead_letters as dead_letters
    from millstream.spark.decode import Split as Split
    from millstream.spark.decode import decoded as decoded
    from millstream.spark.decode import split as split
    from millstream.spark.error import DataLoss as DataLoss
    from millstream.spark.error import OptionError as OptionError
    from millstream.spark.error import UnknownTopic as UnknownTopic
    from millstream.spark.history import read_topic_history as read_topic_history
    from millstream.spark.job.archiving.archive_job import archive as archive
    from millstream.spark.job.auditing.audit_job import audit as audit
    from millstream.spark.job.deadletters_job import deadletters as deadletters
    from millstream.spark.job.job_error import JobError as JobError
    from millstream.spark.job.profiling.profile_job import profile as profile
    from millstream.spark.job.replaying.replay_job import replay as replay
    from millstream.spark.job.snapshotting.snapshot_job import read_snapshot as read_snapshot
    from millstream.spark.job.snapshotting.snapshot_job import snapshot as snapshot
    from millstream.spark.pipeline.pipeline_runner import Pipeline as Pipeline
    from millstream.spark.pipeline.project import ProjectError as ProjectError
    from millstream.spark.pipeline.update import PipelineError as PipelineError
    from millstream.spark.progress import commit_progress as commit_progress
    from millstream.spark.redaction import hide_secrets as hide_secrets
    from millstream.spark.session import spark_session as spark_session

#: The public names, by module.
_NAMES: Final = {
    "dead_letter": ("dead_letters",),
    "decode": ("Split", "decoded", "split"),
    "error": ("DataLoss", "OptionError", "UnknownTopic"),
    "history": ("read_topic_history",),
    "job.archiving.archive_job": ("archive",),
    "job.auditing.audit_job": ("audit",),
    "job.deadletters_job": ("deadletters",),
    "job.job_error": ("JobError",),
    "job.profiling.profile_job": ("profile",),
    "job.replaying.replay_job": ("replay",),
    "job.snapshotting.snapshot_job": ("read_snapshot", "snapshot"),
    "pipeline.pipeline_runner": ("Pipeline",),
    "pipeline.project": ("ProjectError",),
    "pipeline.update": ("PipelineError",),
    "progress": ("commit_progress",),
    "redaction": ("hide_secrets",),
    "session": ("spark_session",),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


if sys.executable:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
