"""What the brokers have of some topics: their ids, the offsets of each partition, the records.

Ends are those of committed records, as read-committed readers see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.cluster_client import ClusterClient, TopicPartition
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
    """Some topics at one moment."""

    ids: Mapping[str, str]
    spans: Mapping[TopicPartition, OffsetSpan]

    def up_to(self, earlier: TopicOffsets) -> TopicOffsets:
        """Without what was not there at an earlier moment."""
        spans = {
            place: OffsetSpan(span.start, max(span.start, min(span.end, earlier.spans[place].end)))
            for place, span in self.spans.items()
            if place in earlier.spans
        }
        return TopicOffsets(self.ids, spans)


def fetch_topic_offsets(run: Run, topics: Sequence[str]) -> TopicOffsets:
    """Raises JobError where a topic does not exist or nobody answers."""
    with open_cluster(run) as cluster:
        found = {name: _topic(cluster, name) for name in topics}
        places = [TopicPartition(name, each) for name, topic in found.items() for each in topic[1]]
        starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST), is_committed=True)
        ends = cluster.list_offsets(dict.fromkeys(places, LATEST), is_committed=True)
    spans = {each: OffsetSpan(starts[each], max(starts[each], ends[each])) for each in places}
    return TopicOffsets({name: topic[0] for name, topic in found.items()}, spans)


def fetch_offsets_at(
    run: Run, places: Sequence[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int | None]:
    """The first offset of each partition whose record is as late; None where none is."""
    with open_cluster(run) as cluster:
        found = cluster.list_offsets(dict.fromkeys(places, timestamp_ms), is_committed=True)
    return {place: None if found[place] < 0 else found[place] for place in places}


def check_topic_ids(coverage: OffsetCoverage, log: TopicOffsets) -> None:
    """Offsets of a topic that was deleted and created again mean other records."""
    for topic, known in coverage.topic_ids.items():
        found = log.ids.get(topic, known)
        if known and found != known:
            raise JobError(
                Failure.DATA_LOSS,
                f"topic {topic!r} was deleted and created again since it was read: its id was"
                f" {known} and is {found}. Use another folder for what it has now.",
            )


def read_ranges(run: Run, ranges: PartitionSpans) -> DataFrame:
    """The committed records of these offsets, with headers."""
    # A reader must have something assigned, also where there is nothing to read.
    places = sorted(place for place, span in ranges.items() if span.size) or sorted(ranges)
    assigned: dict[str, list[int]] = {}
    for place in places:
        assigned.setdefault(place.topic, []).append(place.partition)
    chosen = {place: ranges[place] for place in places}
    reader = run.reader().option("assign", json.dumps(assigned)).option("includeHeaders", "true")
    reader = reader.option("startingOffsets", json.dumps(offsets_json(chosen, end=False)))
    return reader.option("endingOffsets", json.dumps(offsets_json(chosen, end=True))).load()


@contextmanager
def open_cluster(run: Run) -> Iterator[ClusterClient]:
    """Connections to the brokers of a run; their silence becomes a JobError."""
    settings = pop_connection(kafka_properties(run.source_options()))
    try:
        with ClusterClient(settings) as cluster:
            yield cluster
    except Unavailable as error:
        raise JobError(
            Failure.NO_CONNECTION,
            f"no answer from {run.bootstrap_servers}: {error}. Is a broker running there?",
        ) from error


def _topic(cluster: ClusterClient, name: str) -> tuple[str, list[int]]:
    """A topic's id and partitions."""
    try:
        (found,) = cluster.topics([name])
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise JobError(
            Failure.NOT_FOUND,
            f"topic {name!r} does not exist: `millstream topic list` shows those that do.",
        ) from None
    return str(UUID(bytes=bytes(found.topic_id))), sorted(found.leaders)
