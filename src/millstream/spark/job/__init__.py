"""Jobs that the owners of topics run on Spark, each a function and a `millstream job` command.

One module a job, on a shared frame: `run.py` (brokers, session, stopping), `report.py` (what is
told), `failure.py`. Importing this imports no Spark; calling a job does.
"""

from millstream.spark.job.archive_job import ArchiveOptions, archive
from millstream.spark.job.audit_job import Question, audit
from millstream.spark.job.deadletters_job import deadletters
from millstream.spark.job.failure import Failure, JobError
from millstream.spark.job.profile_job import profile
from millstream.spark.job.replay_job import ReplayOptions, replay
from millstream.spark.job.report import Progress, Report, Step, Table
from millstream.spark.job.run import Run, RunOptions
from millstream.spark.job.snapshot_job import read_snapshot, snapshot

__all__ = [
    "ArchiveOptions",
    "Failure",
    "JobError",
    "Progress",
    "Question",
    "ReplayOptions",
    "Report",
    "Run",
    "RunOptions",
    "Step",
    "Table",
    "archive",
    "audit",
    "deadletters",
    "profile",
    "read_snapshot",
    "replay",
    "snapshot",
]
