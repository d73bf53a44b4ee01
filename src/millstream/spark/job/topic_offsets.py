"""The offsets that brokers have of topics, the ids of the topics, and their records.

End offsets are last stable offsets, because jobs read only committed records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.protocol.cluster_client import ClusterClient
from millstream.spark.error import Unavailable
from millstream.spark.job.job_error import Failure, JobError
from millstream.spark.job.offset_coverage import (
    OffsetCoverage,
    OffsetSpan,
    PartitionSpans,
    offsets_json,
)
from millstream.spark.kafka_option import kafka_properties, pop_connection
from millstream.wire.messages.list_offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.spark.job.run import Run


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The ids and offsets of topics at one moment."""

    ids: Mapping[str, str]
    spans: Mapping[TopicPartition, OffsetSpan]

    def up_to(self, earlier: TopicOffsets) -> TopicOffsets:
        """Return the offsets without records that were appended after `earlier`."""
        spans = {
            partition: OffsetSpan(
                span.start, max(span.start, min(span.end, earlier.spans[partition].end))
            )
            for partition, span in self.spans.items()
            if partition in earlier.spans
        }
        return TopicOffsets(self.ids, spans)


def fetch_topic_offsets(run: Run, topics: Sequence[str]) -> TopicOffsets:
    """Fetch ids and offsets. Raises JobError if a topic does not exist or no broker responds."""
    with open_cluster(run) as cluster:
        found = {name: _topic(cluster, name) for name in topics}
        partitions = [
            TopicPartition(name, each) for name, topic in found.items() for each in topic[1]
        ]
        starts = cluster.list_offsets(dict.fromkeys(partitions, EARLIEST), is_committed=True)
        ends = cluster.list_offsets(dict.fromkeys(partitions, LATEST), is_committed=True)
    spans = {each: OffsetSpan(starts[each], max(starts[each], ends[each])) for each in partitions}
    return TopicOffsets({name: topic[0] for name, topic in found.items()}, spans)


def fetch_offsets_at(
    run: Run, partitions: Sequence[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int | None]:
    """Return the first offset at or after the timestamp in each partition, or None."""
    with open_cluster(run) as cluster:
        found = cluster.list_offsets(dict.fromkeys(partitions, timestamp_ms), is_committed=True)
    return {
        partition: None if found[partition] < 0 else found[partition] for partition in partitions
    }


def check_topic_ids(coverage: OffsetCoverage, log: TopicOffsets) -> None:
    """Raise JobError if a topic was deleted and created again: its offsets mean other records."""
    for topic, known in coverage.topic_ids.items():
        found = log.ids.get(topic, known)
        if known and found != known:
            raise JobError(
                Failure.DATA_LOSS,
                f"topic {topic!r} was deleted and created again since it was read: its id was"
                f" {known} and is {found}. Use another folder for the new topic.",
            )


def read_ranges(run: Run, ranges: PartitionSpans) -> DataFrame:
    """Read the committed records of these spans, with headers."""
    # A reader needs at least one partition, even if all spans are empty.
    partitions = sorted(partition for partition, span in ranges.items() if span.size) or sorted(
        ranges
    )
    assigned: dict[str, list[int]] = {}
    for partition in partitions:
        assigned.setdefault(partition.topic, []).append(partition.partition)
    chosen = {partition: ranges[partition] for partition in partitions}
    reader = run.reader().option("assign", json.dumps(assigned)).option("includeHeaders", "true")
    reader = reader.option("startingOffsets", json.dumps(offsets_json(chosen, end=False)))
    return reader.option("endingOffsets", json.dumps(offsets_json(chosen, end=True))).load()


@contextmanager
def open_cluster(run: Run) -> Iterator[ClusterClient]:
    """Connect to the brokers of a run. Unavailable brokers raise JobError."""
    settings = pop_connection(kafka_properties(run.source_options()))
    try:
        with ClusterClient(settings) as cluster:
            yield cluster
    except Unavailable as error:
        raise JobError(
            Failure.NO_CONNECTION,
            f"no response from {run.bootstrap_servers}: {error}. Is a broker running there?",
        ) from error


def _topic(cluster: ClusterClient, name: str) -> tuple[str, list[int]]:
    """Return a topic's id and partitions."""
    try:
        (found,) = cluster.topics([name])
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise JobError(
            Failure.NOT_FOUND,
            f"topic {name!r} does not exist: `millstream topic list` shows the topics that do.",
        ) from None
    return str(UUID(bytes=bytes(found.topic_id))), sorted(found.leaders)
