"""The port that an archive's storage implements, and what its formats share.

`ArchiveStore` keeps records and says which offsets the archive covers. `parquet_store`,
`delta_store` and `iceberg_store` implement it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from millstream.spark.job.commit_log import sync
from millstream.spark.job.job_error import Failure, JobError
from millstream.spark.job.offset_coverage import OffsetCoverage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The job that makes its commits.
ARCHIVE: Final = "archive"
STAGING: Final = "_staging"
#: The columns of an archive, as Spark writes types; the last two come from the record timestamp.
SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int, headers array<struct<key: string, value: binary>>, date date, hour int"
)
COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"),
    *("date", "hour"),
)
PARTITIONED_BY: Final = ("topic", "date", "hour")


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A Parquet file, by its path below the root."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """An archive as of a commit; 0 is before the first."""

    number: int = 0
    coverage: OffsetCoverage = field(default_factory=OffsetCoverage)
    #: Of plain Parquet only: tables know theirs themselves.
    files: tuple[ArchiveFile, ...] = ()


class ArchiveStore(Protocol):
    """One archive in one format. Everything but reading needs the lock."""

    root: Path
    #: The columns that name the folders of a batch.
    partitioned_by: Sequence[str]

    def lock(self) -> AbstractContextManager[None]: ...

    def recover(self) -> None:
        """Finish what a run that died had decided, and clear away what it had not."""

    def committed(self) -> ArchiveState:
        """What readers may rely on."""

    def prepared(self, frame: DataFrame) -> DataFrame:
        """Records and their hours with the columns that `partitioned_by` names."""

    def staging(self) -> Path:
        """A new folder for Spark to write a batch to."""

    def commit(self, staged: Path, coverage: OffsetCoverage) -> Sequence[ArchiveFile]:
        """Make the batch in `staged`, and with it these offsets, part of the archive."""

    def finish(self, staged: Path) -> None:
        """What is left to do after the commit; `recover` does it where this was not reached."""

    def read(self, spark: SparkSession, state: ArchiveState, topics: Sequence[str]) -> DataFrame:
        """All records of these topics as of `state`."""


def staged_files(staged: Path) -> list[ArchiveFile]:
    """What Spark wrote, counted from the files themselves, and on stable storage from now on."""
    from pyarrow.parquet import read_metadata

    if not (staged / "_SUCCESS").exists():
        raise JobError(
            Failure.FAILED,
            f"{staged}: what Spark wrote is not there: the folder must be one that the driver"
            " and all executors share.",
        )
    found = []
    for path in sorted(staged.rglob("*.parquet")):
        sync(path)
        rows = read_metadata(path).num_rows
        found.append(ArchiveFile(str(path.relative_to(staged)), rows, os.path.getsize(path)))
    return found


def require_same_rows(
    root: Path, added: Iterable[ArchiveFile], removed: Iterable[ArchiveFile]
) -> None:
    """Raise where files could not take the place of others."""
    if sum(each.rows for each in added) != sum(each.rows for each in removed):
        raise JobError(Failure.FAILED, f"{root}: a compaction would change the records.")


def read_folders(spark: SparkSession, root: Path, paths: Sequence[str]) -> DataFrame:
    """The records of files below `root`, whose folders tell topic, date and hour."""
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    reader = spark.read.schema(SCHEMA).option("basePath", str(root))
    return reader.parquet(*(str(root / each) for each in paths)).select(*COLUMNS)
