"""The snapshot job: `snapshot` keeps a table of the latest value of each key of a topic.

Within a partition the later offset wins. A key can have records in several partitions if partitions
were added. Then the latest record of each partition is kept, and the later timestamp wins, then the
higher partition. A tombstone removes its key. It is kept for a day of record time, as brokers keep
tombstones, so that an older record of another partition does not restore the key. Records without a
key are counted and skipped.

Each run reads only new records and merges them with the last version of the table into a new
version. One commit stores the version together with its offsets (see `snapshot_table.py`).

Steps reported to `progress`: `reading`, `written` (not yet committed), `committed`, `in place`.
"""

from __future__ import annotations

import time
from os import PathLike
from typing import TYPE_CHECKING, Final, Unpack

from millstream.model.topic import TopicPartition
from millstream.spark.job.archiving.archive_layout import session_config
from millstream.spark.job.commit_log import local_path
from millstream.spark.job.job_error import Failure, JobError, usage_error
from millstream.spark.job.offset_coverage import (
    OffsetSpan,
    PartitionSpans,
    count_offsets,
    find_unread,
    format_gaps,
)
from millstream.spark.job.report import Report, Step, spans_table
from millstream.spark.job.run import Run, RunOptions, observation
from millstream.spark.job.snapshotting.snapshot_table import (
    SCHEMA,
    SnapshotState,
    SnapshotTable,
    count_live_rows,
)
from millstream.spark.job.topic_offsets import (
    TopicOffsets,
    check_topic_ids,
    fetch_topic_offsets,
    read_ranges,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOMBSTONE_MS: Final = 24 * 3_600_000
_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")


def snapshot(
    topic: str,
    path: str | PathLike[str],
    *,
    allow_gaps: bool = False,
    **options: Unpack[RunOptions],
) -> Report:
    """Update the table in the folder `path` with the new records of the topic.

    >>> snapshot("customers", "/lake/customers")
    >>> read_snapshot(spark, "/lake/customers")

    Raises JobError if retention deleted unread records (unless gaps are allowed), if the folder
    belongs to another topic, or if another run works on it.
    """
    with Run.of("snapshot", options) as run:
        work = _SnapshotRun(run, SnapshotTable(local_path(path)), topic, allow_gaps)
        if run.dry_run:
            return work.report_dry_run()
        with work.table.lock():
            work.table.recover()
            return work.execute()


def read_snapshot(spark: SparkSession, path: str | PathLike[str]) -> DataFrame:
    """Return the table: one row per key, with its partition, offset, timestamp and headers."""
    table = SnapshotTable(local_path(path))
    state = table.state()
    if not state.number:
        raise JobError(Failure.NOT_FOUND, f"{table.root} has no snapshot.")
    return table.read(spark, state).where("live").select(*_COLUMNS)


class _SnapshotRun:
    """One run of the snapshot job."""

    def __init__(self, run: Run, table: SnapshotTable, topic: str, allow_gaps: bool) -> None:
        self.run = run
        self.table = table
        self.topic = topic
        self._allow_gaps = allow_gaps

    def report_dry_run(self) -> Report:
        """Report what a run would read."""
        ranges, _, notes = self._unread(self.table.state())
        return Report(
            "snapshot",
            f"{count_offsets(ranges):,} offsets would be read into {self.table.root}.",
            {"offsets": count_offsets(ranges)},
            (spans_table(ranges, "new offsets"),),
            notes,
            is_dry=True,
        )

    def execute(self) -> Report:
        began = time.monotonic()
        state = self.table.state()
        ranges, log, notes = self._unread(state)
        if state.number and not count_offsets(ranges):
            return self._report(state.rows, ranges, {}, began, notes)
        self._report_step("reading", 0, ranges)
        version = self.table.new_version(state.number + 1)
        counts = self._write(state, ranges, str(version))
        newest_ms = max(state.newest_ms, counts.get("newest", 0))
        self._report_step("written", count_offsets(ranges), ranges)
        coverage = state.coverage.extended(ranges, log.ids)
        rows = count_live_rows(version)
        number = state.number + 1
        self.table.commit(
            SnapshotState(number, version.name, self.topic, rows, newest_ms, coverage)
        )
        self._report_step("committed", count_offsets(ranges), ranges)
        self.table.finish()
        self._report_step("in place", count_offsets(ranges), ranges)
        return self._report(rows, ranges, counts, began, notes)

    def _unread(
        self, state: SnapshotState
    ) -> tuple[dict[TopicPartition, OffsetSpan], TopicOffsets, tuple[str, ...]]:
        if state.topic not in ("", self.topic):
            raise usage_error(f"{self.table.root} is the snapshot of topic {state.topic!r}.")
        log = fetch_topic_offsets(self.run, [self.topic])
        check_topic_ids(state.coverage, log)
        ranges, lost, beyond = find_unread(state.coverage, log.spans)
        if beyond or (lost and not self._allow_gaps):
            raise JobError(
                Failure.DATA_LOSS,
                f"the log lacks the offsets after the snapshot: {format_gaps(beyond + lost)}."
                " Start a new snapshot, or allow gaps if retention deleted records.",
            )
        return ranges, log, tuple(f"Not read, deleted by retention: {gap}." for gap in lost)

    def _write(self, state: SnapshotState, ranges: PartitionSpans, folder: str) -> dict[str, int]:
        """Write the next version. Return the counts of its records."""
        from pyspark.sql import functions as F  # noqa: N812

        spark = self.run.session()
        seen = observation(spark)
        records = _records(self.run, spark, ranges)
        records = records.observe(
            seen,
            F.count(F.lit(1)).alias("records"),
            F.count(F.when(F.col("key").isNull(), 1)).alias("without key"),
            F.count(F.when(F.col("value").isNull(), 1)).alias("deletions"),
            F.max(F.unix_millis("timestamp")).alias("newest"),
        )
        keyed = records.where("key is not null")
        rows = merge_records(self.table.read(spark, state), keyed, state.newest_ms)
        with session_config(spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
            rows.write.partitionBy("live").option("compression", "zstd").parquet(folder)
        return {name: int(value or 0) for name, value in seen.get.items()}

    def _report(
        self,
        rows: int,
        ranges: PartitionSpans,
        counts: dict[str, int],
        began: float,
        notes: tuple[str, ...],
    ) -> Report:
        facts = {
            "keys": rows,
            "records": counts.get("records", 0),
            "deletions": counts.get("deletions", 0),
            "records without key": counts.get("without key", 0),
            "seconds": round(time.monotonic() - began, 2),
        }
        outcome = f"{self.table.root} has {rows:,} keys of topic {self.topic}."
        return Report("snapshot", outcome, facts, (spans_table(ranges, "new offsets"),), notes)

    def _report_step(self, what: str, done: int, ranges: PartitionSpans) -> None:
        self.run.progress(Step(what, done, count_offsets(ranges), "offsets"))


def merge_records(before: DataFrame, records: DataFrame, newest_ms: int) -> DataFrame:
    """Return the rows of the next version: the latest record of each key and partition.

    The column `live` marks the row of each key in the table. `newest_ms` is the latest timestamp of
    the last version."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    both = before.select(*_COLUMNS).unionByName(records.select(*_COLUMNS))
    row = F.struct("offset", "timestamp", "value", "headers")
    latest = both.groupBy("key", "partition").agg(F.max_by(row, "offset").alias("row"))
    of_key = Window.partitionBy("key").orderBy(F.desc("timestamp"), F.desc("partition"))
    ranked = latest.select("key", "partition", "row.*").withColumn(
        "rank", F.row_number().over(of_key)
    )
    has_value = F.col("value").isNotNull()
    is_recent = F.unix_millis("timestamp") >= newest_ms - _TOMBSTONE_MS
    flagged = ranked.withColumn("live", has_value & (F.col("rank") == 1))
    return flagged.where(has_value | is_recent).select(*_COLUMNS, "live")


def _records(run: Run, spark: SparkSession, ranges: PartitionSpans) -> DataFrame:
    if not count_offsets(ranges):
        return spark.createDataFrame([], SCHEMA)
    return read_ranges(run, ranges)
