"""The archive job: `archive` copies records from topics into a table of files, exactly once.

A run reads the records after the archive's offsets in batches. It writes each batch to a staging
folder and commits it together with the new offsets. There is no checkpoint beside the data: the
last commit says where to continue. A killed run can therefore continue on any machine.

Steps reported to `progress`: `reading`, `written` (staged, not committed), `committed` (files not
yet in their final folders), `in place`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Final, Literal, TypeAlias, Unpack

from millstream.model.topic import TopicPartition
from millstream.spark.job.archiving.archive_layout import with_hours, write_parquet
from millstream.spark.job.archiving.archive_store import ARCHIVE, ArchiveFile, ArchiveStore
from millstream.spark.job.archiving.file_compaction import compact
from millstream.spark.job.archiving.parquet_store import ParquetStore
from millstream.spark.job.archiving.table_format import CATALOG
from millstream.spark.job.commit_log import FOLDER, CommitLog, local_path
from millstream.spark.job.job_error import Failure, JobError, usage_error
from millstream.spark.job.offset_coverage import (
    OffsetCoverage,
    OffsetSpan,
    PartitionSpans,
    count_offsets,
    find_unread,
    format_gaps,
    limit_spans,
)
from millstream.spark.job.report import Report, Step, Table, spans_table
from millstream.spark.job.run import Run, RunOptions
from millstream.spark.job.topic_offsets import (
    TopicOffsets,
    check_topic_ids,
    fetch_topic_offsets,
    read_ranges,
)

TableFormat: TypeAlias = Literal["parquet", "delta", "iceberg"]
BATCH_RECORDS_MAX: Final = 2_000_000
FILE_BYTES: Final = 128 * 1024 * 1024
INTERVAL_S: Final = 60.0
#: A continuous run compacts small files after this many batches.
_COMPACT_EVERY: Final = 60


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """How an archive is written."""

    #: Stop after the records that existed at the start; otherwise run until stopped.
    available_now: bool = False
    #: How often a continuous run polls for new records. A longer interval gives larger files.
    interval_s: float = INTERVAL_S
    batch_records_max: int = BATCH_RECORDS_MAX
    #: The target size of files.
    file_bytes: int = FILE_BYTES
    #: Continue if retention deleted records before they were archived.
    allow_gaps: bool = False
    #: Compact small files during the run and at its end.
    compact: bool = True


def archive(
    topics: Sequence[str],
    path: str | PathLike[str],
    *,
    table_format: TableFormat = "parquet",
    settings: ArchiveOptions | None = None,
    **options: Unpack[RunOptions],
) -> Report:
    """Archive topics into the folder `path`, by topic, date and hour.

    >>> archive(["orders"], "/lake/orders", settings=ArchiveOptions(available_now=True))

    Raises JobError if retention deleted records before they were archived (unless gaps are
    allowed), if a topic was deleted and created again, or if another run works on the folder.
    """
    if not topics:
        raise usage_error("name at least one topic to archive.")
    with Run.of("archive", options) as run:
        store = open_store(path, table_format)
        work = _ArchiveRun(run, store, sorted(set(topics)), settings or ArchiveOptions())
        if run.dry_run:
            return work.report_dry_run()
        with store.lock():
            store.recover()
            return work.execute()


def format_of(root: Path) -> TableFormat | None:
    """Return the format of the archive in a folder, or None if there is no archive."""
    if (root / "_delta_log").is_dir():
        return "delta"
    if (root / FOLDER / CATALOG).exists():
        return "iceberg"
    return "parquet" if CommitLog(root, ARCHIVE).last() is not None else None


def open_store(path: str | PathLike[str], table_format: TableFormat = "parquet") -> ArchiveStore:
    """Open the archive in a folder. Raises JobError for another or uninstalled format."""
    root = local_path(path)
    found = format_of(root)
    if found not in (None, table_format):
        raise usage_error(f"{root} holds an archive of the format {found}, not {table_format}.")
    if table_format == "delta":
        from millstream.spark.job.archiving.delta_store import DeltaStore

        return DeltaStore(root)
    if table_format == "iceberg":
        from millstream.spark.job.archiving.iceberg_store import IcebergStore

        return IcebergStore(root)
    if table_format != "parquet":
        raise usage_error(f"{table_format!r} is not a format: use parquet, delta or iceberg.")
    return ParquetStore(root)


@dataclass(slots=True)
class _ArchiveRun:
    """One run of the archive job."""

    run: Run
    store: ArchiveStore
    topics: list[str]
    settings: ArchiveOptions
    began: float = field(default_factory=time.monotonic)
    batches: int = 0
    files: list[ArchiveFile] = field(default_factory=list)
    records: Counter[TopicPartition] = field(default_factory=Counter)
    gaps: list[str] = field(default_factory=list)

    def execute(self) -> Report:
        compacted = 0
        for coverage, ranges in self._batches():
            self._archive(coverage, ranges)
            if self.batches % _COMPACT_EVERY == 0:
                compacted += self._compact()
        return self._report(compacted + self._compact())

    def report_dry_run(self) -> Report:
        """Report what a run would archive."""
        coverage = self.store.committed().coverage
        ranges, notes = self._unread(coverage, fetch_topic_offsets(self.run, self.topics))
        return Report(
            "archive",
            f"{count_offsets(ranges):,} offsets would be archived into {self.store.root}.",
            {"offsets": count_offsets(ranges)},
            (spans_table(ranges, "offsets"),),
            tuple(notes),
            is_dry=True,
        )

    def _batches(self) -> Iterator[tuple[OffsetCoverage, PartitionSpans]]:
        """Yield each batch of spans, and the coverage of the archive with that batch."""
        coverage = self.store.committed().coverage
        first = fetch_topic_offsets(self.run, self.topics)
        while not self.run.stop.is_set():
            # Offsets are fetched for each batch, because retention continues meanwhile.
            log = fetch_topic_offsets(self.run, self.topics)
            log = log.up_to(first) if self.settings.available_now else log
            ranges, notes = self._unread(coverage, log)
            self.gaps += [each for each in notes if each not in self.gaps]
            batch = limit_spans(ranges, self.settings.batch_records_max)
            if count_offsets(batch):
                coverage = coverage.extended(batch, log.ids)
                yield coverage, batch
            elif self.settings.available_now:
                return
            else:
                self.run.progress(Step("waiting for records"))
                self.run.stop.wait(self.settings.interval_s)

    def _unread(
        self, coverage: OffsetCoverage, log: TopicOffsets
    ) -> tuple[dict[TopicPartition, OffsetSpan], list[str]]:
        check_topic_ids(coverage, log)
        ranges, lost, beyond = find_unread(coverage, log.spans)
        if beyond:
            raise JobError(
                Failure.DATA_LOSS,
                f"the archive has more than the log: only {self.store.root} has"
                f" {format_gaps(beyond)}. The log was truncated; archive it into another folder.",
            )
        if lost and not self.settings.allow_gaps:
            raise JobError(
                Failure.DATA_LOSS,
                f"retention deleted records that were not archived: {format_gaps(lost)}."
                " Allow gaps to continue without them.",
            )
        return ranges, [f"Not archived, deleted by retention: {gap}." for gap in lost]

    def _archive(self, coverage: OffsetCoverage, ranges: PartitionSpans) -> None:
        done, count = sum(self.records.values()), count_offsets(ranges)
        self._report_step("reading", done, done + count)
        staged = self.store.staging()
        records = self.store.prepared(with_hours(read_ranges(self.run, ranges)))
        write_parquet(records, staged, self.settings.file_bytes, self.store.partitioned_by)
        self._report_step("written", done, done + count)
        added = self.store.commit(staged, coverage)
        self._report_step("committed", done + count, done + count)
        self.store.finish(staged)
        self.batches += 1
        self.files += added
        self.records.update({partition: span.size for partition, span in ranges.items()})
        self._report_step("in place", done + count, done + count)

    def _compact(self) -> int:
        """Compact small files if the settings say so."""
        if not self.settings.compact:
            return 0
        return compact(self.run, self.store, self.settings.file_bytes)

    def _report_step(self, what: str, done: int, of: int) -> None:
        self.run.progress(Step(what, done, of, "offsets"))

    def _report(self, compacted: int) -> Report:
        rows = sum(each.rows for each in self.files)
        seconds = time.monotonic() - self.began
        return Report(
            "archive",
            f"{rows:,} records were archived into {self.store.root}.",
            {
                "records": rows,
                "batches": self.batches,
                "files": len(self.files),
                "files compacted": compacted,
                "bytes": sum(each.bytes for each in self.files),
                "seconds": round(seconds, 2),
            },
            (self._coverage_table(),),
            tuple(self.gaps),
            is_ok=not (self.settings.available_now and self.run.stop.is_set()),
        )

    def _coverage_table(self) -> Table:
        coverage = self.store.committed().coverage
        rows = [
            (*partition, self.records[partition], spans[0].start, spans[-1].end)
            for partition, spans in sorted(coverage.spans.items())
            if partition.topic in self.topics
        ]
        columns = ("topic", "partition", "new offsets", "first offset", "next offset")
        return Table.of("partitions", columns, rows)
