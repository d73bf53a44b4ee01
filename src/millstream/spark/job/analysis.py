"""Turns Spark's analysis errors about the user's SQL and folders into errors of a job.

Spark Connect analyses a frame only when it is used. These functions ask for its columns, so that
every kind of session raises the error at the same point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.spark.error_text import error_sentence
from millstream.spark.job.job_error import Failure, JobError, usage_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Spark's conditions for a missing folder, and for a folder without files of a table.
_NO_TABLE: Final = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


def analyse_sql(make: Callable[[], DataFrame], what: str) -> DataFrame:
    """Return the frame that `make` builds. Raises JobError if its SQL, named `what`, is wrong."""
    from pyspark.errors import AnalysisException

    try:
        frame = make()
        frame.columns  # noqa: B018 - makes Spark analyse the frame
    except AnalysisException as error:
        raise usage_error(f"{what} cannot be used: {error_sentence(str(error))}") from None
    return frame


def analyse_table(make: Callable[[], DataFrame], folder: str) -> DataFrame:
    """Return the frame that `make` reads. Raises JobError if `folder` has no Parquet table."""
    from pyspark.errors import AnalysisException

    try:
        frame = make()
        frame.columns  # noqa: B018 - makes Spark analyse the frame
    except AnalysisException as error:
        if (error.getCondition() or "").partition(".")[0] not in _NO_TABLE:
            raise
        raise JobError(Failure.NOT_FOUND, f"{folder} has no Parquet table.") from None
    return frame
