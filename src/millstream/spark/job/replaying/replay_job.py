"""The replay job: `replay` sends records of a topic or its archive to a topic again, each once.

The records to send are fixed when the replay starts (see `replay_plan.py`). They are sent in
chunks. The exactly-once sink writes each chunk with the replay's id and the chunk's number; then
the position is committed. If a run dies in between, the next run repeats the chunk with the same
number, and the sink skips it if it was written. Records of a partition keep their order.

Each record gets two headers, which replace those of an earlier replay:

    millstream-replay-source   TOPIC/PARTITION/OFFSET of the original record
    millstream-replay-id       the id of the replay

Steps reported to `progress`: `sending`, `sent` (visible, position not yet committed), `noted`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from typing import TYPE_CHECKING, Final, Unpack, cast

from millstream.spark.job.analysis import analyse_sql
from millstream.spark.job.archiving.archive_job import TableFormat, open_store
from millstream.spark.job.archiving.archive_store import ArchiveStore
from millstream.spark.job.commit_log import local_path
from millstream.spark.job.job_error import Failure, JobError, usage_error
from millstream.spark.job.offset_coverage import OffsetSpan, PartitionSpans, count_offsets
from millstream.spark.job.replaying.replay_plan import (
    ReplayLog,
    ReplayPlan,
    ReplayPosition,
    ReplaySelection,
    chunk_size,
    pause_s,
)
from millstream.spark.job.report import Report, Step, Table
from millstream.spark.job.run import Run, RunOptions, observation
from millstream.spark.job.topic_offsets import fetch_offsets_at, fetch_topic_offsets, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE_HEADER: Final = "millstream-replay-source"
ID_HEADER: Final = "millstream-replay-id"
CHUNK_RECORDS_MAX: Final = 100_000
_HEADERS: Final = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The records to send, and the rate."""

    #: Read from this archive instead of the log.
    archive: str | PathLike[str] | None = None
    table_format: TableFormat = "parquet"
    #: Only these partitions, each with the offsets `[start, end)`.
    ranges: Mapping[int, tuple[int, int]] | None = None
    #: Only records with a timestamp in `[since_ms, until_ms)`.
    since_ms: int | None = None
    until_ms: int | None = None
    #: The times are relative to now. A resumed replay keeps the times of its first run.
    relative_times: bool = False
    keys: Sequence[bytes] = ()
    #: An SQL condition on the columns of the source.
    where: str | None = None
    #: The maximum rate in records per second, averaged over a chunk.
    rate: float | None = None
    chunk_records_max: int = CHUNK_RECORDS_MAX
    #: Send to the partition with the same number instead of the key's partition.
    same_partitions: bool = False
    #: Use the time of sending as timestamp instead of the record's timestamp.
    new_timestamps: bool = False

    def selection(self, topic: str, to: str) -> ReplaySelection:
        return ReplaySelection(
            topic=topic,
            to=to,
            archive=None if self.archive is None else str(local_path(self.archive)),
            table_format=self.table_format,
            ranges=tuple((each, *span) for each, span in sorted((self.ranges or {}).items())),
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            keys=tuple(key.hex() for key in self.keys),
            where=self.where,
            same_partitions=self.same_partitions,
            new_timestamps=self.new_timestamps,
        )


def replay(
    topic: str,
    to: str,
    *,
    state: str | PathLike[str],
    settings: ReplayOptions | None = None,
    **options: Unpack[RunOptions],
) -> Report:
    """Send records of `topic` to the topic `to`.

    The folder `state` stores the position. Call again with the same folder to resume a replay.

    >>> replay("orders", "orders-again", state="/var/replays/7",
    ...        settings=ReplayOptions(where="cast(value as string) like '%refund%'", rate=500))

    Raises JobError if the topic or the archive lacks the records, if the folder belongs to another
    replay, or if another run works on it.
    """
    with Run.of("replay", options) as run:
        work = _ReplayRun(run, ReplayLog(local_path(state)), settings or ReplayOptions(), topic, to)
        if run.dry_run:
            return work.report_dry_run()
        with work.log.lock():
            return work.execute()


class _ReplayRun:
    """One run of the replay job."""

    def __init__(
        self, run: Run, log: ReplayLog, settings: ReplayOptions, topic: str, to: str
    ) -> None:
        self.run = run
        self.log = log
        self.settings = settings
        self.selection = settings.selection(topic, to)
        self.chunk_records = chunk_size(settings.rate, settings.chunk_records_max)
        self.began = time.monotonic()
        self.sent = 0

    def report_dry_run(self) -> Report:
        """Report what a run would send."""
        position = self._position()
        ranges = position.plan.left(position.done)
        rows = []
        if count_offsets(ranges):
            counted = self._chosen(ranges).groupBy("partition").count().orderBy("partition")
            rows = [(self.selection.topic, row[0], row[1]) for row in counted.collect()]
        count = sum(row[2] for row in rows)
        return Report(
            "replay",
            f"{count:,} records of {self.selection.topic} would be sent to {self.selection.to}.",
            {"records": count, "offsets": count_offsets(ranges)},
            (Table.of("partitions", ("topic", "partition", "records"), rows),),
            is_dry=True,
        )

    def execute(self) -> Report:
        position = self._position()
        if not position.number:
            position = ReplayPosition(1, position.plan, position.done)
            self.log.append(position)
        resumed = position.sent
        whole = count_offsets(position.plan.left({}))
        wait_s = 0.0
        while (chunk := position.plan.chunk(position.done)) and not self.run.stop.wait(wait_s):
            began = time.monotonic()
            left = count_offsets(position.plan.left(position.done))
            self._report_step("sending", whole - left, whole)
            count = self._send(position, chunk)
            self.sent += count
            self._report_step("sent", whole - left, whole)
            position = position.after(chunk, count, self.chunk_records)
            self.log.append(position)
            self._report_step("noted", whole - left + count_offsets(chunk), whole)
            wait_s = pause_s(self.settings.rate, count, time.monotonic() - began)
        return self._report(position, resumed)

    def _position(self) -> ReplayPosition:
        fetch_topic_offsets(self.run, [self.selection.to])
        times = ("since_ms", "until_ms") if self.settings.relative_times else ()
        known = self.log.position(self.selection, may_differ=times)
        if known is not None:
            self.selection = known.plan.selection
            return known
        plan = ReplayPlan(uuid.uuid4().hex, self.selection, self._ranges(), self.chunk_records)
        return ReplayPosition(0, plan, {})

    def _ranges(self) -> dict[int, OffsetSpan]:
        """Return the present offsets to replay."""
        found = self._archived() if self.selection.archive is not None else self._logged()
        asked = self.settings.ranges
        if asked is None:
            return found
        return {each: _within(found, each, OffsetSpan(*span)) for each, span in asked.items()}

    def _logged(self) -> dict[int, OffsetSpan]:
        spans = fetch_topic_offsets(self.run, [self.selection.topic]).spans
        starts = {place: span.start for place, span in spans.items()}
        if self.selection.since_ms is not None:
            later = fetch_offsets_at(self.run, list(spans), self.selection.since_ms)
            for place, span in spans.items():
                first = later[place]
                starts[place] = span.end if first is None else min(first, span.end)
        return {
            place.partition: OffsetSpan(starts[place], span.end) for place, span in spans.items()
        }

    def _archived(self) -> dict[int, OffsetSpan]:
        coverage = self._store().committed().coverage
        found = {
            place.partition: OffsetSpan(spans[0].start, spans[-1].end)
            for place, spans in coverage.spans.items()
            if place.topic == self.selection.topic
        }
        if not found:
            raise JobError(
                Failure.NOT_FOUND,
                f"{self.selection.archive} has no records of topic {self.selection.topic!r}.",
            )
        return found

    def _store(self) -> ArchiveStore:
        assert self.selection.archive is not None, "the replay reads the log"
        return open_store(self.selection.archive, cast("TableFormat", self.selection.table_format))

    def _send(self, position: ReplayPosition, chunk: PartitionSpans) -> int:
        from pyspark.sql import functions as F  # noqa: N812

        seen = observation(self.run.session())
        rows = self._chosen(chunk).observe(seen, F.count(F.lit(1)).alias("records"))
        plan = position.plan
        writer = mark_replayed(rows, plan).write.format("millstream").mode("append")
        writer = writer.options(**self.run.source_options()).option("topic", self.selection.to)
        writer = writer.option("txnAppId", f"replay-{plan.id}")
        writer.option("txnVersion", str(position.number)).save()
        return int(seen.get["records"])

    def _chosen(self, ranges: PartitionSpans) -> DataFrame:
        """Return the records of these spans that the selection includes."""
        frame = self._records(ranges)
        for condition in conditions(self.selection):
            frame = frame.where(condition)
        where = self.selection.where
        if where is None:
            return frame
        return analyse_sql(lambda: frame.where(where), f"the condition {where!r}")

    def _records(self, ranges: PartitionSpans) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        if self.selection.archive is None:
            return read_ranges(self.run, ranges)
        store = self._store()
        frame = store.read(self.run.session(), store.committed(), [self.selection.topic])
        offset = F.col("offset")
        spans = [
            (F.col("partition") == place.partition) & (offset >= span.start) & (offset < span.end)
            for place, span in ranges.items()
        ]
        chosen = frame.where(reduce(lambda one, other: one | other, spans))
        return chosen.repartition("partition").sortWithinPartitions("partition", "offset")

    def _report(self, position: ReplayPosition, resumed: int) -> Report:
        left = position.plan.left(position.done)
        rows = [(*place, span.start, span.end) for place, span in left.items()]
        notes = (
            [f"{count_offsets(left):,} offsets are left: run again to continue."]
            if count_offsets(left)
            else []
        )
        if resumed:
            notes.append(f"{resumed:,} records had been sent by earlier runs.")
        return Report(
            "replay",
            f"{self.sent:,} records of {self.selection.topic} were sent to {self.selection.to}.",
            {
                "records": self.sent,
                "records of all runs": position.sent,
                "replay id": position.plan.id,
                "seconds": round(time.monotonic() - self.began, 2),
            },
            (Table.of("partitions", ("topic", "partition", "next offset", "end offset"), rows),),
            tuple(notes),
            is_ok=not count_offsets(left),
        )

    def _report_step(self, what: str, done: int, of: int) -> None:
        self.run.progress(Step(what, done, of, "offsets"))


def conditions(selection: ReplaySelection) -> list[Column]:
    """Return the times and keys of a selection as conditions on records."""
    from pyspark.sql import functions as F  # noqa: N812

    found = []
    if selection.since_ms is not None:
        found.append(F.col("timestamp") >= F.timestamp_millis(F.lit(selection.since_ms)))
    if selection.until_ms is not None:
        found.append(F.col("timestamp") < F.timestamp_millis(F.lit(selection.until_ms)))
    if selection.keys:
        found.append(F.col("key").isin([bytes.fromhex(key) for key in selection.keys]))
    return found


def mark_replayed(frame: DataFrame, plan: ReplayPlan) -> DataFrame:
    """Return the columns for the sink, with the headers that name each original record."""
    from pyspark.sql import functions as F  # noqa: N812

    place = F.concat_ws("/", F.col("topic"), F.col("partition"), F.col("offset"))
    added = F.array(_header(F.lit(SOURCE_HEADER), place), _header(F.lit(ID_HEADER), F.lit(plan.id)))
    own = F.coalesce(F.col("headers"), F.array().cast(_HEADERS))
    kept = F.filter(own, lambda each: ~each["key"].isin(SOURCE_HEADER, ID_HEADER))
    columns = [F.col("key"), F.col("value"), F.concat(kept, added).alias("headers")]
    if plan.selection.same_partitions:
        columns.append(F.col("partition"))
    if not plan.selection.new_timestamps:
        columns.append(F.col("timestamp"))
    return frame.select(*columns)


def _header(name: Column, value: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(name.alias("key"), F.encode(value, "UTF-8").alias("value"))


def _within(found: Mapping[int, OffsetSpan], partition: int, asked: OffsetSpan) -> OffsetSpan:
    has = found.get(partition)
    if has is None or asked.start < has.start or asked.end > has.end or asked.start > asked.end:
        there = "there is no such partition" if has is None else f"it has {has.start} to {has.end}"
        raise usage_error(
            f"offsets {asked.start} to {asked.end} of partition {partition}: {there}."
        )
    return asked
