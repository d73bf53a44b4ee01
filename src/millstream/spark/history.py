"""A topic's whole history: what was archived and what the log has, as one DataFrame.

The seam is an offset per partition: the archive's next one. Records below it come from the archive,
whether or not the log still has them, the others from the log, so that none comes twice. Where
retention took records between the two, or between two spans of the archive, there is a gap: an
error that names the offsets, unless gaps are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

from millstream.spark.job.archiving.archive_job import TableFormat, open_store
from millstream.spark.job.job_error import Failure, JobError
from millstream.spark.job.offset_coverage import (
    OffsetCoverage,
    OffsetGap,
    PartitionSpans,
    count_offsets,
    find_unread,
    format_gaps,
)
from millstream.spark.job.run import SERVERS_DEFAULT, Run
from millstream.spark.job.topic_offsets import check_topic_ids, fetch_topic_offsets, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.spark.job.topic_offsets import TopicOffsets


class HistorySplit(NamedTuple):
    """What is to be read from the log, and what is nowhere."""

    live: PartitionSpans
    gaps: list[OffsetGap]
    #: Offsets that the archive has although the log ends before them.
    beyond: list[OffsetGap]


def split_history(coverage: OffsetCoverage, log: TopicOffsets, topic: str) -> HistorySplit:
    """Pure: where the archive ends and the log begins."""
    check_topic_ids(coverage, log)
    live, lost, beyond = find_unread(coverage, log.spans)
    inside = [gap for gap in coverage.gaps() if gap.place.topic == topic]
    return HistorySplit(live, sorted(inside + lost), beyond)


def read_topic_history(
    spark: SparkSession,
    topic: str,
    *,
    archive: str | PathLike[str],
    table_format: TableFormat = "parquet",
    bootstrap_servers: str = SERVERS_DEFAULT,
    properties: Mapping[str, str] | None = None,
    allow_gaps: bool = False,
) -> DataFrame:
    """All records of a topic up to now, each once, with the columns of the source and headers.

    Raises JobError where offsets are neither archived nor in the log, or where the log ends before
    the archive does, unless `allow_gaps`.
    """
    run = Run(
        "history", bootstrap_servers=bootstrap_servers, properties=properties or {}, spark=spark
    )
    # First the archive, then the log: what is archived meanwhile is read from the log.
    store = open_store(archive, table_format)
    state = store.committed()
    seam = split_history(state.coverage, fetch_topic_offsets(run, [topic]), topic)
    if not allow_gaps:
        _require_whole(seam)
    archived = store.read(spark, state, [topic]).drop("date", "hour")
    if not count_offsets(seam.live):
        return archived
    return archived.unionByName(read_ranges(run, seam.live))


def _require_whole(seam: HistorySplit) -> None:
    if seam.gaps:
        raise JobError(
            Failure.DATA_LOSS,
            f"neither the archive nor the log has {format_gaps(seam.gaps)}."
            " Allow gaps to read the rest.",
        )
    if seam.beyond:
        raise JobError(
            Failure.DATA_LOSS,
            f"the log ends before the archive: only the archive has {format_gaps(seam.beyond)}."
            " Allow gaps to read what the archive has.",
        )
