"""The data pipeline on Spark: a source and an exactly-once sink, pipelines, and jobs.

What people call is imported when first asked for: executors need none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millstream.spark.history import read_topic_history as read_topic_history
    from millstream.spark.job.snapshot_job import read_snapshot as read_snapshot

_MODULES: Final = {
    "read_snapshot": "millstream.spark.job.snapshot_job",
    "read_topic_history": "millstream.spark.history",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
