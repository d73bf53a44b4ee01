"""An archive as an Iceberg table, committed by pyiceberg.

    ROOT/_millstream/catalog.db      the catalog (SQLite), with the table `millstream.archive`
    ROOT/data/ID/...parquet          the files of a batch, written by Spark
    ROOT/millstream/archive/...      Iceberg's metadata

The table is partitioned by topic and by the hour of the timestamp. The files contain both columns,
as Iceberg requires. One snapshot adds a batch and stores the covered offsets in its summary. The
newest snapshot with offsets counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.spark.job.archiving.archive_layout import with_hours
from millstream.spark.job.archiving.archive_store import (
    ARCHIVE,
    COLUMNS,
    SCHEMA,
    ArchiveFile,
    ArchiveState,
    require_same_rows,
    staged_files,
)
from millstream.spark.job.archiving.table_format import (
    CATALOG,
    COVERAGE_KEY,
    arrow_schema,
    coverage_property,
    no_coverage_error,
    parse_coverage,
    remove_pending,
    require_package,
    write_pending,
)
from millstream.spark.job.commit_log import FOLDER, CommitLog
from millstream.spark.job.offset_coverage import OffsetCoverage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

TABLE: Final = ("millstream", "archive")
_DATA: Final = "data"
_FILE_SCHEMA: Final = SCHEMA.removesuffix(", date date, hour int")


class IcebergStore:
    """An archive as an Iceberg table. The number of a state is the id of a snapshot."""

    def __init__(self, root: Path) -> None:
        require_package("pyiceberg.catalog.sql", "iceberg")
        self.root = root
        self.partitioned_by: Sequence[str] = ("folder", "date", "hour")
        self._opened: Catalog | None = None

    def lock(self) -> AbstractContextManager[None]:
        return CommitLog(self.root, ARCHIVE).lock()

    def recover(self) -> None:
        table = self._table()
        remove_pending(self.root, self._files_by_path(table) if table is not None else ())

    def committed(self) -> ArchiveState:
        table = self._table()
        snapshot = table.current_snapshot() if table is not None else None
        if table is None or snapshot is None:
            return ArchiveState()
        number = snapshot.snapshot_id
        while snapshot is not None:
            text = snapshot.summary and snapshot.summary.additional_properties.get(COVERAGE_KEY)
            if text:
                return ArchiveState(number, parse_coverage(text))
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        raise no_coverage_error(self.root, "Iceberg")

    def prepared(self, frame: DataFrame) -> DataFrame:
        """Add a column for the folders, because Spark removes folder columns from the files."""
        from pyspark.sql import functions as F  # noqa: N812

        return frame.withColumn("folder", F.col("topic"))

    def staging(self) -> Path:
        name = f"{_DATA}/{uuid.uuid4().hex}"
        write_pending(self.root, [name])
        return self.root / name

    def commit(self, staged: Path, coverage: OffsetCoverage) -> Sequence[ArchiveFile]:
        added = staged_files(staged)
        table = self._table() or self._create()
        table.add_files(
            [f"file://{staged / each.path}" for each in added],
            snapshot_properties=coverage_property(coverage),
        )
        return added

    def finish(self, staged: Path) -> None:
        table = self._table()
        assert table is not None, "nothing was committed"
        remove_pending(self.root, self._files_by_path(table))

    def read(self, spark: SparkSession, state: ArchiveState, topics: Sequence[str]) -> DataFrame:
        table = self._table()
        if table is None or not state.number:
            return spark.createDataFrame([], SCHEMA)
        # Topic names contain only letters, digits, dots, dashes and underscores.
        names = ", ".join(f"'{topic}'" for topic in topics)
        scan = table.scan(f"topic in ({names})", snapshot_id=state.number)
        return _read(spark, [task.file.file_path for task in scan.plan_files()])

    def files(self) -> Sequence[ArchiveFile]:
        """Return the files that this store wrote. Other programs may have added more."""
        table = self._table()
        found = self._files_by_path(table) if table is not None else {}
        return [
            ArchiveFile(path, each.record_count, each.file_size_in_bytes)
            for path, each in found.items()
            if path.startswith(f"{_DATA}/")
        ]

    def folder(self, file: ArchiveFile) -> str:
        """Return the folder below the batch's own folder. Files of one folder may be compacted."""
        return "/".join(file.path.split("/")[2:-1])

    def read_files(self, spark: SparkSession, files: Sequence[ArchiveFile]) -> DataFrame:
        """Return the records of these files."""
        return _read(spark, [f"file://{self.root / each.path}" for each in files])

    def replace(self, staged: Path, removed: Sequence[ArchiveFile]) -> Sequence[ArchiveFile]:
        """Replace files by the files in `staged`.

        The old files stay on disk while a snapshot names them."""
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        added = staged_files(staged)
        require_same_rows(self.root, added, removed)
        table = self._table()
        assert table is not None, "nothing was committed"
        known = self._files_by_path(table)
        paths = iter([f"file://{staged / each.path}" for each in added])
        coverage = coverage_property(self.committed().coverage)
        with (
            table.transaction() as transaction,
            transaction.update_snapshot(snapshot_properties=coverage).overwrite() as snapshot,
        ):
            for file in parquet_files_to_data_files(table.io, table.metadata, paths):
                snapshot.append_data_file(file)
            for old in removed:
                snapshot.delete_data_file(known[old.path])
        return added

    def _catalog(self) -> Catalog:
        from pyiceberg.catalog.sql import SqlCatalog

        if self._opened is None:
            path = self.root / FOLDER / CATALOG
            self._opened = SqlCatalog(
                "millstream", uri=f"sqlite:///{path}", warehouse=f"file://{self.root}"
            )
        return self._opened

    def _table(self) -> Table | None:
        if not (self.root / FOLDER / CATALOG).exists():
            return None
        catalog = self._catalog()
        return catalog.load_table(TABLE) if catalog.table_exists(TABLE) else None

    def _create(self) -> Table:
        from pyiceberg.transforms import HourTransform

        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(TABLE[0])
        schema = arrow_schema(with_hours=False)
        with (
            catalog.create_table_transaction(TABLE, schema=schema) as created,
            created.update_spec() as spec,
        ):
            spec.add_identity("topic")
            spec.add_field("timestamp", HourTransform(), "timestamp_hour")
        return catalog.load_table(TABLE)

    def _files_by_path(self, table: Table) -> dict[str, DataFile]:
        """Return the files of a table by their paths below the root."""
        prefix = f"file://{self.root}/"
        files = (task.file for task in table.scan().plan_files())
        return {each.file_path.removeprefix(prefix): each for each in files}


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    return with_hours(spark.read.schema(_FILE_SCHEMA).parquet(*paths)).select(*COLUMNS)
