"""Reads the whole history of a topic, from its archive and its log, as one DataFrame.

Records below the archive's end offset come from the archive, even if the log still has them. Later
records come from the log. Each record is therefore read once. If retention deleted records before
they were archived, there is a gap: an error that names the offsets, unless gaps are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

from millstream.model.bootstrap import SERVERS_DEFAULT
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
from millstream.spark.job.run import Run
from millstream.spark.job.topic_offsets import check_topic_ids, fetch_topic_offsets, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.spark.job.topic_offsets import TopicOffsets


class HistorySplit(NamedTuple):
    """The offsets to read from the log, and the offsets that are missing."""

    live: PartitionSpans
    gaps: list[OffsetGap]
    #: Archived offsets beyond the end of the log.
    beyond: list[OffsetGap]


def split_history(coverage: OffsetCoverage, log: TopicOffsets, topic: str) -> HistorySplit:
    """Split the history between archive and log. Pure."""
    check_topic_ids(coverage, log)
    live, lost, beyond = find_unread(coverage, log.spans)
    inside = [gap for gap in coverage.gaps() if gap.partition.topic == topic]
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
    """Return all present records of a topic, each once, with the columns of the source and headers.

    Unless `allow_gaps`, raises JobError if offsets are neither archived nor in the log, or if the
    log ends before the archive.
    """
    run = Run(
        "history", bootstrap_servers=bootstrap_servers, properties=properties or {}, spark=spark
    )
    # The archive is opened first, so records that are archived meanwhile come from the log.
    store = open_store(archive, table_format)
    state = store.committed()
    history = split_history(state.coverage, fetch_topic_offsets(run, [topic]), topic)
    if not allow_gaps:
        _require_no_gaps(history)
    archived = store.read(spark, state, [topic]).drop("date", "hour")
    if not count_offsets(history.live):
        return archived
    return archived.unionByName(read_ranges(run, history.live))


def _require_no_gaps(history: HistorySplit) -> None:
    if history.gaps:
        raise JobError(
            Failure.DATA_LOSS,
            f"neither the archive nor the log has {format_gaps(history.gaps)}."
            " Allow gaps to read the rest.",
        )
    if history.beyond:
        raise JobError(
            Failure.DATA_LOSS,
            f"the log ends before the archive: only the archive has {format_gaps(history.beyond)}."
            " Allow gaps to read what the archive has.",
        )
