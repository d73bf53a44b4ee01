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
    from millstream.spark.history import read_topic_history as read_topic_history
    from millstream.spark.job.snapshotting.snapshot_job import read_snapshot as read_snapshot

_MODULES: Final = {
    "read_snapshot": "millstream.spark.job.snapshotting.snapshot_job",
    "read_topic_history": "millstream.spark.history",
}


if sys.executable:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
