"""Spark jobs for the owners of topics. Each job is a function and a `millstream job` command.

This package owns the jobs and what they share: `run.py` (brokers, session, stopping), `report.py`
and `job_error.py`. Options and output of the commands belong to `millstream.cli`. Public names are
imported on first use, and Spark is imported when a job runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millstream.spark.job.archiving.archive_job import ArchiveOptions as ArchiveOptions
    from millstream.spark.job.archiving.archive_job import archive as archive
    from millstream.spark.job.auditing.audit_job import Question as Question
    from millstream.spark.job.auditing.audit_job import audit as audit
    from millstream.spark.job.deadletters_job import deadletters as deadletters
    from millstream.spark.job.job_error import Failure as Failure
    from millstream.spark.job.job_error import JobError as JobError
    from millstream.spark.job.profiling.profile_job import profile as profile
    from millstream.spark.job.replaying.replay_job import ReplayOptions as ReplayOptions
    from millstream.spark.job.replaying.replay_job import replay as replay
    from millstream.spark.job.report import Progress as Progress
    from millstream.spark.job.report import Report as Report
    from millstream.spark.job.report import Step as Step
    from millstream.spark.job.report import Table as Table
    from millstream.spark.job.run import Run as Run
    from millstream.spark.job.run import RunOptions as RunOptions
    from millstream.spark.job.snapshotting.snapshot_job import read_snapshot as read_snapshot
    from millstream.spark.job.snapshotting.snapshot_job import snapshot as snapshot

_NAMES: Final = {
    "archiving.archive_job": ("ArchiveOptions", "archive"),
    "auditing.audit_job": ("Question", "audit"),
    "deadletters_job": ("deadletters",),
    "job_error": ("Failure", "JobError"),
    "profiling.profile_job": ("profile",),
    "replaying.replay_job": ("ReplayOptions", "replay"),
    "report": ("Progress", "Report", "Step", "Table"),
    "run": ("Run", "RunOptions"),
    "snapshotting.snapshot_job": ("read_snapshot", "snapshot"),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
