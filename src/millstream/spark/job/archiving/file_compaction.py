"""Compacts the small files of an archive.

A continuous run that archives every minute writes many small files per hour and folder. Compaction
replaces the files below half the target size by larger ones. One commit adds the new files and
removes the old ones; the covered offsets stay the same. Spark rewrites plain Parquet and Iceberg;
deltalake compacts Delta tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast, runtime_checkable

from millstream.spark.job.archiving.archive_layout import write_parquet
from millstream.spark.job.archiving.archive_store import ArchiveFile, ArchiveStore
from millstream.spark.job.report import Step
from millstream.spark.job.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Folders that are rewritten in one commit.
_FOLDERS_MAX: Final = 64


@runtime_checkable
class SelfCompactingStore(Protocol):
    """A store that compacts small files without Spark."""

    def compact_files(self, file_bytes: int) -> int: ...


class RewritableStore(ArchiveStore, Protocol):
    """A store in which files can be replaced by others."""

    def files(self) -> Sequence[ArchiveFile]: ...

    def folder(self, file: ArchiveFile) -> str: ...

    def read_files(self, spark: SparkSession, files: Sequence[ArchiveFile]) -> DataFrame: ...

    def replace(self, staged: Path, removed: Sequence[ArchiveFile]) -> Sequence[ArchiveFile]: ...


def small_files(
    files: Iterable[ArchiveFile], file_bytes: int, folder: Callable[[ArchiveFile], str]
) -> list[list[ArchiveFile]]:
    """Return the files to compact, grouped by folder."""
    folders: defaultdict[str, list[ArchiveFile]] = defaultdict(list)
    for each in files:
        if each.bytes < file_bytes // 2:
            folders[folder(each)].append(each)
    return [found for _, found in sorted(folders.items()) if len(found) > 1]


def compact(run: Run, store: ArchiveStore, file_bytes: int) -> int:
    """Compact small files. Return the number of replaced files. Requires the lock."""
    if isinstance(store, SelfCompactingStore):
        return store.compact_files(file_bytes)
    return _rewrite(run, cast("RewritableStore", store), file_bytes)


def _rewrite(run: Run, store: RewritableStore, file_bytes: int) -> int:
    folders = small_files(store.files(), file_bytes, store.folder)
    done = 0
    for at in range(0, len(folders), _FOLDERS_MAX):
        if run.stop.is_set():
            break
        run.progress(Step("compacting", at, len(folders), "folders"))
        old = [each for found in folders[at : at + _FOLDERS_MAX] for each in found]
        staged = store.staging()
        records = store.prepared(store.read_files(run.session(), old))
        write_parquet(records, staged, file_bytes, store.partitioned_by)
        run.progress(Step("compacted", at, len(folders), "folders"))
        store.replace(staged, old)
        run.progress(Step("replaced", at, len(folders), "folders"))
        store.finish(staged)
        done += len(old)
    return done
