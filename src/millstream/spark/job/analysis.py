"""What Spark finds wrong with the SQL and the folders that people name, as errors of a job.

Over Spark Connect nothing is looked at before it is needed, so `analysed` asks for the columns of a
frame: what is wrong is then told where it was given, and alike on every kind of session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.spark.error_text import error_sentence
from millstream.spark.job.job_error import Failure, JobError, usage_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: What Spark says of a folder that is not there, and of one without files of a table.
_NO_TABLE: Final = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")


def analyse_sql(make: Callable[[], DataFrame], what: str) -> DataFrame:
    """The frame that `make` makes of the SQL `what`. Raises JobError where that is wrong."""
    from pyspark.errors import AnalysisException

    try:
        frame = make()
        frame.columns  # noqa: B018 - asks Spark
    except AnalysisException as error:
        raise usage_error(f"{what} can't be used: {error_sentence(str(error))}") from None
    return frame


def analyse_table(make: Callable[[], DataFrame], folder: str) -> DataFrame:
    """The frame that `make` makes of a folder of Parquet. Raises JobError where it is none."""
    from pyspark.errors import AnalysisException

    try:
        frame = make()
        frame.columns  # noqa: B018 - asks Spark
    except AnalysisException as error:
        if (error.getCondition() or "").partition(".")[0] not in _NO_TABLE:
            raise
        raise JobError(Failure.NOT_FOUND, f"{folder} has no Parquet table.") from None
    return frame
