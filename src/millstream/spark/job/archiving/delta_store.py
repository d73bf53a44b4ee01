"""An archive as a Delta table, committed by deltalake.

Spark writes the files into the same folders as plain Parquet. One Delta commit adds the files of a
batch and stores the covered offsets in its metadata. Other programs may commit too (optimize,
vacuum): the newest commit with offsets counts. The folder must be read as a Delta table, because
compacted files stay in it for a week beside the files that replace them.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.spark.job.archiving.archive_store import (
    ARCHIVE,
    PARTITIONED_BY,
    SCHEMA,
    STAGING,
    ArchiveFile,
    ArchiveState,
    read_folders,
    staged_files,
)
from millstream.spark.job.archiving.table_format import (
    COVERAGE_KEY,
    arrow_schema,
    coverage_property,
    no_coverage_error,
    parse_coverage,
    remove_pending,
    require_package,
    write_pending,
)
from millstream.spark.job.commit_log import CommitLog
from millstream.spark.job.offset_coverage import OffsetCoverage

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


class DeltaStore:
    """An archive as a Delta table. The number of a state is the table's version plus one."""

    def __init__(self, root: Path) -> None:
        require_package("deltalake", "delta")
        self.root = root
        self.partitioned_by: Sequence[str] = PARTITIONED_BY

    def lock(self) -> AbstractContextManager[None]:
        return CommitLog(self.root, ARCHIVE).lock()

    def recover(self) -> None:
        table = self._table()
        remove_pending(self.root, _paths(table) if table is not None else ())
        shutil.rmtree(self.root / STAGING, ignore_errors=True)

    def committed(self) -> ArchiveState:
        table = self._table()
        if table is None:
            return ArchiveState()
        for entry in table.history():
            if COVERAGE_KEY in entry:
                return ArchiveState(table.version() + 1, parse_coverage(entry[COVERAGE_KEY]))
        if _paths(table):
            raise no_coverage_error(self.root, "Delta")
        return ArchiveState(table.version() + 1)

    def prepared(self, frame: DataFrame) -> DataFrame:
        return frame

    def staging(self) -> Path:
        return self.root / STAGING / uuid.uuid4().hex

    def commit(self, staged: Path, coverage: OffsetCoverage) -> Sequence[ArchiveFile]:
        from deltalake import CommitProperties

        added = staged_files(staged)
        table = self._table() or self._create()
        write_pending(self.root, [each.path for each in added])
        for each in added:
            target = self.root / each.path
            target.parent.mkdir(parents=True, exist_ok=True)
            (staged / each.path).rename(target)
        table.create_write_transaction(
            [_add_action(self.root, each) for each in added],
            "append",
            table.schema(),
            list(PARTITIONED_BY),
            commit_properties=CommitProperties(custom_metadata=coverage_property(coverage)),
        )
        return added

    def finish(self, staged: Path) -> None:
        shutil.rmtree(staged, ignore_errors=True)
        table = self._table()
        assert table is not None, "nothing was committed"
        remove_pending(self.root, _paths(table))

    def read(self, spark: SparkSession, state: ArchiveState, topics: Sequence[str]) -> DataFrame:
        table = self._table()
        if table is None or not state.number:
            return spark.createDataFrame([], SCHEMA)
        table.load_as_version(state.number - 1)
        wanted = tuple(f"topic={topic}/" for topic in topics)
        paths = sorted(each for each in _paths(table) if each.startswith(wanted))
        return read_folders(spark, self.root, paths)

    def compact_files(self, file_bytes: int) -> int:
        """Compact small files with deltalake. Return the number of replaced files.

        Files that were replaced more than a week ago are deleted from the disk."""
        from deltalake import CommitProperties, WriterProperties

        table = self._table()
        if table is None:
            return 0
        metadata = coverage_property(self.committed().coverage)
        found = table.optimize.compact(
            target_size=file_bytes,
            writer_properties=WriterProperties(compression="ZSTD"),
            commit_properties=CommitProperties(custom_metadata=metadata),
        )
        replaced = int(found["numFilesRemoved"])
        if replaced:
            table.vacuum(dry_run=False)
        return replaced

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.root)):
            return None
        return DeltaTable(str(self.root))

    def _create(self) -> DeltaTable:
        from deltalake import DeltaTable

        schema = arrow_schema(with_hours=True)
        return DeltaTable.create(str(self.root), schema, partition_by=list(PARTITIONED_BY))


def _paths(table: DeltaTable) -> set[str]:
    """Return the paths of a table's files below its root."""
    actions: Any = table.get_add_actions(flatten=True)
    return set(actions.column("path").to_pylist())


def _add_action(root: Path, file: ArchiveFile) -> Any:
    from deltalake.transaction import AddAction

    folders = file.path.split("/")[:-1]
    values = dict(folder.partition("=")[::2] for folder in folders)
    changed_ms = int((root / file.path).stat().st_mtime * 1000)
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.bytes, values, changed_ms, True, stats)
