"""An archive as plain Parquet files, with commits in a commit log.

    ROOT/topic=orders/date=2026-01-31/hour=13/part-....parquet   committed records
    ROOT/_staging/ID/topic=.../...                               a batch that is being written
    ROOT/_millstream/N.json                                      commits (see `commit_log.py`)

A commit names the files it adds and removes, and all offsets that the archive covers with it:

    {"added": [{"path", "rows", "bytes"}], "removed": [path], "staging": "_staging/ID",
     "coverage": {...}, "files": [...]}

Only every 50th commit has `files`, the list of all files, so that readers need not go back to the
first commit. Commits older than the last few lists are removed.

A batch is written to its staging folder and synced. The commit then decides it. Then its files are
moved to their final folders. The next run moves the files of the last commit if a run died before
that, and removes all other staged files. Readers of the folder therefore see records of commits
only. `committed` returns the last commit whose files are all in place.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.spark.job.archiving.archive_store import (
    ARCHIVE,
    PARTITIONED_BY,
    STAGING,
    ArchiveFile,
    ArchiveState,
    read_folders,
    require_same_rows,
    staged_files,
)
from millstream.spark.job.commit_log import CommitLog, sync
from millstream.spark.job.offset_coverage import OffsetCoverage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_LIST_EVERY: Final = 50
#: Commits that are kept for readers that started from an older commit.
_COMMITS_KEPT: Final = 2 * _FILE_LIST_EVERY


class ParquetStore:
    """An archive as plain Parquet files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.partitioned_by: Sequence[str] = PARTITIONED_BY
        self._log = CommitLog(root, ARCHIVE)

    def lock(self) -> AbstractContextManager[None]:
        return self._log.lock()

    def recover(self) -> None:
        last = self._log.last()
        if last is not None:
            self._move_to_final_folders(last[1])
        shutil.rmtree(self.root / STAGING, ignore_errors=True)

    def committed(self) -> ArchiveState:
        numbers = self._log.numbers()
        if numbers and not self._is_in_place(self._log.read(numbers[-1])):
            numbers.pop()
        return self._state(numbers)

    def prepared(self, frame: DataFrame) -> DataFrame:
        return frame

    def staging(self) -> Path:
        return self.root / STAGING / uuid.uuid4().hex

    def commit(self, staged: Path, coverage: OffsetCoverage) -> Sequence[ArchiveFile]:
        added = staged_files(staged)
        self._append(staged, coverage, added, removed=())
        return added

    def replace(self, staged: Path, removed: Sequence[ArchiveFile]) -> Sequence[ArchiveFile]:
        """Replace files by the files in `staged`."""
        added = staged_files(staged)
        require_same_rows(self.root, added, removed)
        paths = tuple(each.path for each in removed)
        self._append(staged, self.committed().coverage, added, removed=paths)
        return added

    def finish(self, staged: Path) -> None:
        last = self._log.last()
        assert last is not None, "nothing was committed"
        self._move_to_final_folders(last[1])
        shutil.rmtree(staged, ignore_errors=True)

    def read(self, spark: SparkSession, state: ArchiveState, topics: Sequence[str]) -> DataFrame:
        prefixes = tuple(f"topic={topic}/" for topic in topics)
        return self.read_files(spark, [e for e in state.files if e.path.startswith(prefixes)])

    def files(self) -> Sequence[ArchiveFile]:
        """Return all committed files."""
        return self.committed().files

    def folder(self, file: ArchiveFile) -> str:
        """Return the folder of a file. Files of one folder may be compacted."""
        return file.path.rpartition("/")[0]

    def read_files(self, spark: SparkSession, files: Sequence[ArchiveFile]) -> DataFrame:
        """Return the records of these files."""
        return read_folders(spark, self.root, [each.path for each in files])

    def _append(
        self,
        staged: Path,
        coverage: OffsetCoverage,
        added: Sequence[ArchiveFile],
        removed: Sequence[str],
    ) -> None:
        before = self._state(self._log.numbers())
        number = before.number + 1
        entry: dict[str, Any] = {
            "staging": str(staged.relative_to(self.root)),
            "added": [asdict(each) for each in added],
            "removed": list(removed),
            "coverage": coverage.as_json(),
        }
        if number % _FILE_LIST_EVERY == 0:
            entry["files"] = [asdict(each) for each in _apply_entry(before.files, entry)]
        self._log.append(number, entry)
        if "files" in entry:
            self._log.remove_before(number - _COMMITS_KEPT)

    def _state(self, numbers: Sequence[int]) -> ArchiveState:
        entries: list[dict[str, Any]] = []
        for number in reversed(numbers):
            entries.append(self._log.read(number))
            if "files" in entries[-1]:
                break
        if not entries:
            return ArchiveState()
        files: tuple[ArchiveFile, ...] = ()
        for entry in reversed(entries):
            known = entry.get("files")
            files = (
                _apply_entry(files, entry)
                if known is None
                else tuple(ArchiveFile(**e) for e in known)
            )
        return ArchiveState(numbers[-1], OffsetCoverage.from_json(entries[0]["coverage"]), files)

    def _is_in_place(self, entry: dict[str, Any]) -> bool:
        return all((self.root / each["path"]).exists() for each in entry["added"])

    def _move_to_final_folders(self, entry: dict[str, Any]) -> None:
        """Move added files before removing old ones: readers then use the commit."""
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


def _apply_entry(files: Iterable[ArchiveFile], entry: dict[str, Any]) -> tuple[ArchiveFile, ...]:
    removed = set(entry["removed"])
    kept = tuple(each for each in files if each.path not in removed)
    return kept + tuple(ArchiveFile(**each) for each in entry["added"])
