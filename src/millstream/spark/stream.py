"""Reading topics in a stream: `spark.readStream.format("millstream")`.

One process plans for the whole life of a query, so what `StreamReader` learns is kept there: the
ids of topics, when a batch was last given. Tasks get a copy of it only to read ranges.

    initialOffset   where a new query begins; a query with a checkpoint is never asked
    latestOffset    where the next batch ends; also finds new partitions and lost topics
    partitions      the ranges of a batch, also of one that is repeated after a restart
    commit          a batch is finished: Spark tells this one batch late, and not of the last one
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.spark.connection.cluster import Cluster, TopicPartition
from millstream.spark.loss import LossPolicy
from millstream.spark.offsets import limit_offsets, ranges_between, split_ranges
from millstream.spark.options import stream_options
from millstream.spark.plan import Offsets, Planner
from millstream.spark.position import Kind, offsets_from_json, offsets_to_json
from millstream.spark.schema import requested_columns
from millstream.spark.source import RangePartition, RangeReader

JsonOffsets = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What `spark.readStream` reads with."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = stream_options(options)
        self._ranges = RangeReader(self._options, requested_columns(schema))
        self._loss = LossPolicy(self._options.fail_on_data_loss)
        self._cluster: Cluster | None = None
        #: Ids of topics by name, as they were when last seen.
        self._topic_ids: dict[str, bytes] = {}
        #: The end that a query with the trigger AvailableNow goes to.
        self._target: Offsets | None = None
        self._given_at = time.monotonic()
        self._latest: Offsets | None = None
        self._is_pinning = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None}

    # Planning

    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        planner = self._planner()
        start = planner.start(self._partitions(planner))
        # Asked again after a crash in the first batch, "latest" would be another offset. So the
        # first batch is an empty one: its end, which Spark keeps, is where the query begins.
        self._is_pinning = self._options.starting.kind is not Kind.EARLIEST
        return offsets_to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        if self._is_pinning:
            self._is_pinning = False
            return start
        begin = offsets_from_json(start)
        planner = self._planner()
        self._latest = planner.latest(self._partitions(planner))
        end = self._bounded(self._latest)
        begin |= self._starts_of_new(planner, begin, end)
        self._check(begin, end)
        if isinstance(limit, ReadAllAvailable):
            return offsets_to_json(end)
        return offsets_to_json(self._limited(begin, end))

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        return None if self._latest is None else offsets_to_json(self._latest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        planner = self._planner()
        self._target = planner.latest(self._partitions(planner))

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        begin, until = offsets_from_json(start), offsets_from_json(end)
        planner = self._planner()
        if not set(until) <= self._known():
            self._partitions(planner)
        begin |= self._starts_of_new(planner, begin, until)
        ranges = split_ranges(
            ranges_between(begin, until),
            self._options.min_partitions,
            self._options.max_records_per_partition,
        )
        return [RangePartition(part, self._topic_ids.get(part.topic, bytes(16))) for part in ranges]

    def commit(self, end: JsonOffsets) -> None:
        pass

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    # In tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._ranges.read(partition)

    # Pieces

    def _planner(self) -> Planner:
        if self._cluster is None:
            self._cluster = Cluster(self._options.connection)
        return Planner(self._cluster, self._options)

    def _partitions(self, planner: Planner) -> set[TopicPartition]:
        """The partitions that are read, as they are now; what became of topics is noticed."""
        topics = planner.topics()
        for topic in topics:
            known = self._topic_ids.setdefault(topic.name, topic.topic_id)
            if known != topic.topic_id:
                self._topic_ids[topic.name] = topic.topic_id
                self._loss.report(
                    f"Topic {topic.name} was deleted and created anew while the query ran: what"
                    " was not read of it is gone."
                )
        return planner.partitions(topics)

    def _known(self) -> set[TopicPartition]:
        return set(self._latest or ())

    def _bounded(self, latest: Offsets) -> Offsets:
        if self._target is None:
            return latest
        return {key: min(latest[key], offset) for key, offset in self._target.items()}

    def _starts_of_new(self, planner: Planner, begin: Offsets, end: Offsets) -> Offsets:
        """Where partitions begin that were not there before: at their first record."""
        return planner.earliest(set(end) - set(begin))

    def _check(self, begin: Offsets, end: Offsets) -> None:
        """Report offsets that went back and partitions that went."""
        for key, offset in sorted(begin.items()):
            if key not in end:
                self._loss.report(f"{key} is gone; it was read up to offset {offset}.")
            elif end[key] < offset and self._target is None:
                self._loss.report(
                    f"{key} was read up to offset {offset}, but now ends at {end[key]}: it was"
                    " cut, or its topic was created anew."
                )

    def _limited(self, begin: Offsets, end: Offsets) -> Offsets:
        options = self._options
        size = sum(max(0, end[key] - begin[key]) for key in end)
        least = options.min_offsets_per_trigger
        passed_ms = (time.monotonic() - self._given_at) * 1000
        is_early = least is not None and size < least and passed_ms < options.trigger_delay_ms_max
        if is_early and self._target is None:
            return {key: begin[key] for key in end}
        self._given_at = time.monotonic()
        if options.max_offsets_per_trigger is None:
            return end
        return limit_offsets(begin, end, options.max_offsets_per_trigger)
