"""The data pipeline on Spark: a source and an exactly-once sink, pipelines, and jobs.

What people call is imported when first asked for: executors need none of it.

Importing this package sets the environment variable PYSPARK_PYTHON to this interpreter, unless it
is set. Spark reads it when a session is made. Without it, Spark starts its workers with the
`python3` that it finds on the path, which in an environment that is not activated is another one:
that one does not know the data source.
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
