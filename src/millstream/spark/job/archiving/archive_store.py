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

#: The name of the job in commits.
ARCHIVE: Final = "archive"
STAGING: Final = "_staging"
#: The columns of an archive with Spark's types. The last two derive from the timestamp.
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
    """A Parquet file and its path below the root."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """An archive as of a commit. Number 0 is the state before the first commit."""

    number: int = 0
    coverage: OffsetCoverage = field(default_factory=OffsetCoverage)
    #: The files of plain Parquet. Table formats keep their own list.
    files: tuple[ArchiveFile, ...] = ()


class ArchiveStore(Protocol):
    """One archive in one format. Everything except reading requires the lock."""

    root: Path
    #: The columns that name the folders of a batch.
    partitioned_by: Sequence[str]

    def lock(self) -> AbstractContextManager[None]: ...

    def recover(self) -> None:
        """Complete the last commit of a run that died, and remove uncommitted files."""

    def committed(self) -> ArchiveState:
        """Return the last state that readers can read."""

    def prepared(self, frame: DataFrame) -> DataFrame:
        """Return records with the columns that `partitioned_by` names."""

    def staging(self) -> Path:
        """Return a new folder to which Spark writes a batch."""

    def commit(self, staged: Path, coverage: OffsetCoverage) -> Sequence[ArchiveFile]:
        """Commit the batch in `staged` together with the covered offsets."""

    def finish(self, staged: Path) -> None:
        """Complete the commit. `recover` does the same if a run dies before this."""

    def read(self, spark: SparkSession, state: ArchiveState, topics: Sequence[str]) -> DataFrame:
        """Return all records of these topics as of `state`."""


def staged_files(staged: Path) -> list[ArchiveFile]:
    """Return the files that Spark wrote, and sync them to stable storage."""
    from pyarrow.parquet import read_metadata

    if not (staged / "_SUCCESS").exists():
        raise JobError(
            Failure.FAILED,
            f"{staged}: the files that Spark wrote are missing: the driver and all executors must"
            " share the folder.",
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
    """Raise JobError unless both sets of files have the same number of rows."""
    if sum(each.rows for each in added) != sum(each.rows for each in removed):
        raise JobError(Failure.FAILED, f"{root}: a compaction would change the records.")


def read_folders(spark: SparkSession, root: Path, paths: Sequence[str]) -> DataFrame:
    """Return the records of files below `root`. Topic, date and hour come from the folders."""
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    reader = spark.read.schema(SCHEMA).option("basePath", str(root))
    return reader.parquet(*(str(root / each) for each in paths)).select(*COLUMNS)
