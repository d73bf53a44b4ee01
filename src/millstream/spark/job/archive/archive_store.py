"""Where an archive keeps its records and says which offsets it has: the port, and plain Parquet.

    ROOT/topic=orders/date=2026-01-31/hour=13/part-....parquet   committed records
    ROOT/_staging/ID/topic=.../...                               a batch that is being written
    ROOT/_millstream/N.json                                      commits (see `commit_log.py`)

A commit names the files it adds and takes away, and all offsets that the archive has with it:

    {"added": [{"path", "rows", "bytes"}], "removed": [path], "staging": "_staging/ID",
     "coverage": {...}, "files": [...]}

`files` (all there are) is only in every 50th, so that a reader need not go back to the first; what
is older than the last few of those is removed.
A batch is written to its staging folder and synced; then the commit decides; then its files are
moved to where they belong. A run that finds the last commit's files not moved moves them; what
else is staged never counted and is removed. So whoever reads the folder as a table sees records of
commits only, and `committed` tells what can be read without them moving away: the last commit
whose files are all in place.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from millstream.spark.job.commit_log import CommitLog, sync
from millstream.spark.job.coverage import Coverage
from millstream.spark.job.failure import Failure, JobError

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
_FULL_EVERY: Final = 50
#: Commits that stay: a reader may have begun to go back from one that is no more the last.
_COMMITS_KEPT: Final = 2 * _FULL_EVERY


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file, by its path below the root."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class State:
    """An archive as of a commit; 0 is before the first."""

    number: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    #: Of plain Parquet only: tables know theirs themselves.
    files: tuple[File, ...] = ()


class Store(Protocol):
    """One archive in one format. Everything but reading needs the lock."""

    root: Path
    #: The columns that name the folders of a batch.
    partitioned_by: Sequence[str]

    def lock(self) -> AbstractContextManager[None]: ...

    def recover(self) -> None:
        """Finish what a run that died had decided, and clear away what it had not."""

    def committed(self) -> State:
        """What readers may rely on."""

    def prepared(self, frame: DataFrame) -> DataFrame:
        """Records and their hours with the columns that `partitioned_by` names."""

    def staging(self) -> Path:
        """A new folder for Spark to write a batch to."""

    def commit(self, staged: Path, coverage: Coverage) -> Sequence[File]:
        """Make the batch in `staged`, and with it these offsets, part of the archive."""

    def finish(self, staged: Path) -> None:
        """What is left to do after the commit; `recover` does it where this was not reached."""

    def read(self, spark: SparkSession, state: State, topics: Sequence[str]) -> DataFrame:
        """All records of these topics as of `state`."""


class ParquetStore:
    """See the module's text."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.partitioned_by: Sequence[str] = PARTITIONED_BY
        self._log = CommitLog(root, ARCHIVE)

    def lock(self) -> AbstractContextManager[None]:
        return self._log.lock()

    def recover(self) -> None:
        last = self._log.last()
        if last is not None:
            self._put_in_place(last[1])
        shutil.rmtree(self.root / STAGING, ignore_errors=True)

    def committed(self) -> State:
        numbers = self._log.numbers()
        if numbers and not self._is_in_place(self._log.read(numbers[-1])):
            numbers.pop()
        return self._state(numbers)

    def prepared(self, frame: DataFrame) -> DataFrame:
        return frame

    def staging(self) -> Path:
        return self.root / STAGING / uuid.uuid4().hex

    def commit(self, staged: Path, coverage: Coverage) -> Sequence[File]:
        added = staged_files(staged)
        self._append(staged, coverage, added, removed=())
        return added

    def replace(self, staged: Path, removed: Sequence[File]) -> Sequence[File]:
        """Have the records of some files in those of `staged` instead."""
        added = staged_files(staged)
        require_same_rows(self.root, added, removed)
        paths = tuple(each.path for each in removed)
        self._append(staged, self.committed().coverage, added, removed=paths)
        return added

    def finish(self, staged: Path) -> None:
        last = self._log.last()
        assert last is not None, "nothing was committed"
        self._put_in_place(last[1])
        shutil.rmtree(staged, ignore_errors=True)

    def read(self, spark: SparkSession, state: State, topics: Sequence[str]) -> DataFrame:
        prefixes = tuple(f"topic={topic}/" for topic in topics)
        return self.read_files(spark, [e for e in state.files if e.path.startswith(prefixes)])

    def files(self) -> Sequence[File]:
        """All there are."""
        return self.committed().files

    def folder(self, file: File) -> str:
        """Which files may be joined: those of the same."""
        return file.path.rpartition("/")[0]

    def read_files(self, spark: SparkSession, files: Sequence[File]) -> DataFrame:
        """The records of these files."""
        return read_folders(spark, self.root, [each.path for each in files])

    def _append(
        self, staged: Path, coverage: Coverage, added: Sequence[File], removed: Sequence[str]
    ) -> None:
        before = self._state(self._log.numbers())
        number = before.number + 1
        entry: dict[str, Any] = {
            "staging": str(staged.relative_to(self.root)),
            "added": [asdict(each) for each in added],
            "removed": list(removed),
            "coverage": coverage.as_json(),
        }
        if number % _FULL_EVERY == 0:
            entry["files"] = [asdict(each) for each in _applied(before.files, entry)]
        self._log.append(number, entry)
        if "files" in entry:
            self._log.remove_before(number - _COMMITS_KEPT)

    def _state(self, numbers: Sequence[int]) -> State:
        entries: list[dict[str, Any]] = []
        for number in reversed(numbers):
            entries.append(self._log.read(number))
            if "files" in entries[-1]:
                break
        if not entries:
            return State()
        files: tuple[File, ...] = ()
        for entry in reversed(entries):
            known = entry.get("files")
            files = _applied(files, entry) if known is None else tuple(File(**e) for e in known)
        return State(numbers[-1], Coverage.from_json(entries[0]["coverage"]), files)

    def _is_in_place(self, entry: dict[str, Any]) -> bool:
        return all((self.root / each["path"]).exists() for each in entry["added"])

    def _put_in_place(self, entry: dict[str, Any]) -> None:
        """New files first: readers count a commit from then on, and no more read the old ones."""
        staged = self.root / entry["staging"]
        folders = set()
        for each in entry["added"]:
            target = self.root / each["path"]
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                (staged / each["path"]).rename(target)
                folders.add(target.parent)
        for folder in folders:
            sync(folder)
        for path in entry["removed"]:
            (self.root / path).unlink(missing_ok=True)


def staged_files(staged: Path) -> list[File]:
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
        found.append(File(str(path.relative_to(staged)), rows, os.path.getsize(path)))
    return found


def require_same_rows(root: Path, added: Iterable[File], removed: Iterable[File]) -> None:
    """Raise where files could not take the place of others."""
    if sum(each.rows for each in added) != sum(each.rows for each in removed):
        raise JobError(Failure.FAILED, f"{root}: a compaction would change the records.")


def read_folders(spark: SparkSession, root: Path, paths: Sequence[str]) -> DataFrame:
    """The records of files below `root`, whose folders tell topic, date and hour."""
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    reader = spark.read.schema(SCHEMA).option("basePath", str(root))
    return reader.parquet(*(str(root / each) for each in paths)).select(*COLUMNS)


def _applied(files: Iterable[File], entry: dict[str, Any]) -> tuple[File, ...]:
    removed = set(entry["removed"])
    kept = tuple(each for each in files if each.path not in removed)
    return kept + tuple(File(**each) for each in entry["added"])
