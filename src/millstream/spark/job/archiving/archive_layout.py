"""Writes a batch of records as files in folders by topic, date and hour.

Hours are those of the record timestamp in UTC, whatever the session's time zone. Spark's adaptive
shuffle groups the records of one folder into files of about the target size. Each file is sorted by
partition and offset, so that readers of a range skip row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.spark.job.archiving.archive_store import PARTITIONED_BY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY_MS: Final = 86_400_000
_HOUR_MS: Final = 3_600_000


def with_hours(frame: DataFrame) -> DataFrame:
    """Add the columns `date` and `hour` of the record timestamp."""
    from pyspark.sql import functions as F  # noqa: N812

    millis = F.unix_millis("timestamp")
    days = F.floor(millis / F.lit(_DAY_MS)).cast("int")
    hours = F.floor(F.pmod(millis, F.lit(_DAY_MS)) / F.lit(_HOUR_MS)).cast("int")
    return frame.withColumn("date", F.date_from_unix_date(days)).withColumn("hour", hours)


def write_parquet(
    frame: DataFrame,
    folder: Path,
    file_bytes: int,
    partitioned_by: Sequence[str] = PARTITIONED_BY,
) -> None:
    """Write records with the columns of `with_hours` as Parquet."""
    from pyspark.sql import functions as F  # noqa: N812

    settings = {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(file_bytes),
        "spark.sql.sources.partitionOverwriteMode": "static",
    }
    with session_config(frame.sparkSession, settings):
        together = frame.hint("rebalance", *[F.col(name) for name in partitioned_by])
        in_order = together.sortWithinPartitions(*partitioned_by, "partition", "offset")
        writer = in_order.write.partitionBy(*partitioned_by).option("compression", "zstd")
        writer.parquet(str(folder))


@contextmanager
def session_config(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session within the context."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
