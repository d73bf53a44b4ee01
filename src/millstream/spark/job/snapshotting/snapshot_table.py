"""The table of a snapshot: versions of it in a folder, of which a commit makes one the current.

    ROOT/v12-3f2a.../live=true/part-....parquet    the rows of the table
    ROOT/v12-3f2a.../live=false/part-....parquet   what the next run needs besides
    ROOT/current -> v12-3f2a...                    for readers who know nothing of commits
    ROOT/_millstream/12.json                       its name, topic, rows, newest_ms, coverage

A version is written whole and synced, then the commit decides, then the link is swapped by one
rename. The version before stays for those who are reading it; older ones go. A run that finds the
link behind swaps it; versions that no commit names never counted and are removed.
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
#: Versions that stay: the current one, and the one that readers may have begun to read.
_VERSIONS_KEPT: Final = 2
SCHEMA: Final = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key: string, value: binary>>, live boolean"
)


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The table as of a commit; 0 is before the first."""

    number: int = 0
    version: str = ""
    topic: str = ""
    rows: int = 0
    #: The latest timestamp of all records that were read.
    newest_ms: int = 0
    coverage: OffsetCoverage = field(default_factory=OffsetCoverage)


class SnapshotTable:
    """See the module's text. Everything but `state` and `read` needs the lock."""

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
        told = {name: entry[name] for name in ("version", "topic", "rows", "newest_ms")}
        return SnapshotState(number, coverage=coverage, **told)

    def recover(self) -> None:
        """Finish what a run that died had decided, and clear away what it had not."""
        state = self.state()
        if state.number:
            self._point_to(state.version)
        self._clear()

    def new_version(self, number: int) -> Path:
        """Where the version of commit `number` is to be written."""
        return self.root / f"v{number}-{uuid.uuid4().hex}"

    def commit(self, state: SnapshotState) -> None:
        """Make a version that was written, and is on stable storage, the table."""
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
        """Have readers of the link see the commit, and let old versions go."""
        self.recover()

    def read(self, spark: SparkSession, state: SnapshotState) -> DataFrame:
        """All rows, also those that are not of the table but needed by the next run."""
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

    def _clear(self) -> None:
        numbers = self._log.numbers()[-_VERSIONS_KEPT:]
        kept = {self._log.read(number)["version"] for number in numbers}
        for path in self.root.glob("v[0-9]*-*"):
            if path.name not in kept:
                shutil.rmtree(path)
        for left in self.root.glob(f"_{CURRENT}-*"):
            left.unlink()
        if numbers:
            self._log.remove_before(numbers[0])


def rows_of(version: Path) -> int:
    """The rows that the table has in a version, which is on stable storage from now on."""
    files = staged_files(version)
    for folder in {version, *((version / each.path).parent for each in files)}:
        sync(folder)
    return sum(each.rows for each in files if each.path.startswith("live=true/"))
