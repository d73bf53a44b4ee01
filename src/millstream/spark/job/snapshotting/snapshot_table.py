"""The table of a snapshot: versions in a folder. A commit makes one version the current one.

    ROOT/v12-3f2a.../live=true/part-....parquet    the rows of the table
    ROOT/v12-3f2a.../live=false/part-....parquet   other rows that the next run needs
    ROOT/current -> v12-3f2a...                    a link for readers that do not read commits
    ROOT/_millstream/12.json                       its name, topic, rows, newest_ms, coverage

A version is written and synced, then committed, and then a rename replaces the link. The previous
version stays for its readers; older versions are removed. The next run repairs an outdated link
and removes versions that no commit names.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.spark.job.archiving.archive_store import staged_files
from millstream.spark.job.commit_log import CommitLog, sync
from millstream.spark.job.offset_coverage import OffsetCoverage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CURRENT: Final = "current"
#: The current version, and the previous one for its readers.
_VERSIONS_KEPT: Final = 2
SCHEMA: Final = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key: string, value: binary>>, live boolean"
)


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The table as of a commit. Number 0 is the state before the first commit."""

    number: int = 0
    version: str = ""
    topic: str = ""
    rows: int = 0
    #: The latest timestamp of all records read so far.
    newest_ms: int = 0
    coverage: OffsetCoverage = field(default_factory=OffsetCoverage)


class SnapshotTable:
    """The versions of one snapshot. Everything except `state` and `read` requires the lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._log = CommitLog(root, "snapshot")

    def lock(self) -> AbstractContextManager[None]:
        return self._log.lock()

    def state(self) -> SnapshotState:
        last = self._log.last()
        if last is None:
            return SnapshotState()
        number, entry = last
        coverage = OffsetCoverage.from_json(entry["coverage"])
        fields = {name: entry[name] for name in ("version", "topic", "rows", "newest_ms")}
        return SnapshotState(number, coverage=coverage, **fields)

    def recover(self) -> None:
        """Complete the last commit of a run that died, and remove uncommitted versions."""
        state = self.state()
        if state.number:
            self._point_to(state.version)
        self._remove_old_versions()

    def new_version(self, number: int) -> Path:
        """Return the folder for the version of commit `number`."""
        return self.root / f"v{number}-{uuid.uuid4().hex}"

    def commit(self, state: SnapshotState) -> None:
        """Commit a version that is on stable storage."""
        sync(self.root)
        entry = {
            "version": state.version,
            "topic": state.topic,
            "rows": state.rows,
            "newest_ms": state.newest_ms,
            "coverage": state.coverage.as_json(),
        }
        self._log.append(state.number, entry)

    def finish(self) -> None:
        """Point the link to the committed version, and remove old versions."""
        self.recover()

    def read(self, spark: SparkSession, state: SnapshotState) -> DataFrame:
        """Return all rows, including those outside the table that the next run needs."""
        if not state.number:
            return spark.createDataFrame([], SCHEMA)
        return spark.read.schema(SCHEMA).parquet(str(self.root / state.version))

    def _point_to(self, version: str) -> None:
        link = self.root / CURRENT
        if link.is_symlink() and os.readlink(link) == version:
            return
        temporary = self.root / f"_{CURRENT}-{uuid.uuid4().hex}"
        temporary.symlink_to(version, target_is_directory=True)
        temporary.replace(link)
        sync(self.root)

    def _remove_old_versions(self) -> None:
        numbers = self._log.numbers()[-_VERSIONS_KEPT:]
        kept = {self._log.read(number)["version"] for number in numbers}
        for path in self.root.glob("v[0-9]*-*"):
            if path.name not in kept:
                shutil.rmtree(path)
        for left in self.root.glob(f"_{CURRENT}-*"):
            left.unlink()
        if numbers:
            self._log.remove_before(numbers[0])


def count_live_rows(version: Path) -> int:
    """Count the rows of the table in a version, and sync its files to stable storage."""
    files = staged_files(version)
    for folder in {version, *((version / each.path).parent for each in files)}:
        sync(folder)
    return sum(each.rows for each in files if each.path.startswith("live=true/"))
