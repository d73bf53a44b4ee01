"""The streaming reader: `spark.readStream.format("millstream")`.

One process plans all batches of a query, so `StreamReader` keeps state there: topic ids, and the
time of the last batch. Tasks get a copy, which only reads ranges.

    initialOffset   the start of a new query; Spark does not call it after the first finished batch
    latestOffset    the end of the next batch; also finds new partitions and deleted topics
    partitions      the ranges of a batch, including a batch that is repeated after a restart
    commit          a batch is finished; Spark calls it one batch late, and not for the last batch

Spark hides errors that the constructor of a stream reader raises. `stream_reader` therefore returns
a reader that raises the error at its first call.
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

from millstream.model.topic import TopicPartition
from millstream.protocol.cluster_client import ClusterClient, TopicMetadata
from millstream.spark.error import ConciseErrors, SettingError
from millstream.spark.source.data_loss import DataLossPolicy
from millstream.spark.source.group_progress import GroupProgress
from millstream.spark.source.offset_position import offsets_from_json, offsets_to_json
from millstream.spark.source.offset_range import (
    bound_offsets,
    limit_offsets,
    ranges_between,
    split_ranges,
)
from millstream.spark.source.range_reader import RangePartition, RangeReader
from millstream.spark.source.source_options import stream_options
from millstream.spark.source.source_planner import Offsets, SourcePlanner
from millstream.spark.source.source_schema import requested_columns

JsonOffsets = dict[str, dict[str, int]]


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of `spark.readStream`."""
    try:
        return StreamReader(options, schema)
    except SettingError as error:
        return InvalidOptionsReader(error)


class InvalidOptionsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error in the options of a query at every call."""

    def __init__(self, error: SettingError) -> None:
        self._error = error

    @ConciseErrors()
    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        raise self._error

    @ConciseErrors()
    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        raise self._error

    @ConciseErrors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        raise self._error

    @ConciseErrors()
    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query. The constructor raises SettingError."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = stream_options(options)
        self._ranges = RangeReader(self._options, requested_columns(schema))
        self._loss = DataLossPolicy(self._options.fail_on_data_loss)
        #: Created on first use, and never pickled.
        self._cluster: ClusterClient | None = None
        self._progress: GroupProgress | None = None
        #: The last known id of each topic.
        self._topic_ids: dict[str, bytes] = {}
        #: The end of a query with the trigger AvailableNow.
        self._target: Offsets | None = None
        #: The time of the last batch, for `maxTriggerDelay`. The first batch is not delayed.
        self._last_batch_at = float("-inf")
        self._latest: Offsets | None = None
        #: Whether the next batch is the empty first one that fixes the start: see `initialOffset`.
        self._is_pinning = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None, "_progress": None}

    # Planning

    @ConciseErrors()
    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        planner = self._planner()
        start = planner.start(planner.partitions(self._remember_ids(planner.topics())))
        # After a crash in the first batch, "latest" would resolve to other offsets. The first batch
        # is therefore empty, and its end, which Spark stores, is the start of the query.
        self._is_pinning = self._options.starting.moves or not self._options.is_timestamp_required
        return offsets_to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @ConciseErrors()
    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        if self._is_pinning:
            self._is_pinning = False
            return start
        begin = offsets_from_json(start)
        planner = self._planner()
        latest = self._latest = planner.latest(self._partitions(planner))
        self._report_losses(begin, latest)
        end = latest if self._target is None else bound_offsets(begin, latest, self._target)
        begin |= self._starts_of_new(planner, begin, end)
        if isinstance(limit, ReadAllAvailable):
            return offsets_to_json(end)
        if self._is_too_little(begin, end):
            return start
        self._last_batch_at = time.monotonic()
        most = self._options.max_offsets_per_trigger
        return offsets_to_json(end if most is None else limit_offsets(begin, end, most))

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        # A batch that is repeated after a restart is planned without a call of `latestOffset`.
        found = self._target if self._latest is None else self._latest
        return None if found is None else offsets_to_json(found)

    @ConciseErrors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        planner = self._planner()
        self._target = planner.latest(self._partitions(planner))

    @ConciseErrors()
    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        if self._is_pinning:
            # Spark repeats the first batch after a crash; it was empty.
            self._is_pinning = False
            return []
        begin, until = offsets_from_json(start), offsets_from_json(end)
        planner = self._planner()
        if not {key.topic for key in until} <= set(self._topic_ids):
            self._partitions(planner)
        begin |= self._starts_of_new(planner, begin, until)
        begin |= self._starts_of_recreated(planner, begin, until)
        ranges = split_ranges(
            ranges_between(begin, until),
            self._options.min_partitions,
            self._options.max_records_per_partition,
        )
        return [RangePartition(part, self._topic_ids.get(part.topic, bytes(16))) for part in ranges]

    @ConciseErrors()
    def commit(self, end: JsonOffsets) -> None:
        if self._options.group_id is None:
            return
        if self._progress is None:
            self._progress = GroupProgress(self._options.connection, self._options.group_id)
        self._progress.commit(offsets_from_json(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        if self._progress is not None:
            self._progress.close()

    # Reading in tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._ranges.read(partition)

    # Parts of the plan

    def _planner(self) -> SourcePlanner:
        if self._cluster is None:
            self._cluster = ClusterClient(self._options.connection)
        return SourcePlanner(self._cluster, self._options)

    def _partitions(self, planner: SourcePlanner) -> set[TopicPartition]:
        """Return the present partitions of the query, and report topics that were created again."""
        # Without failOnDataLoss a query also continues after a topic was deleted.
        may_be_missing = self._topic_ids or not self._options.fail_on_data_loss
        topics = planner.found_topics() if may_be_missing else planner.topics()
        return planner.partitions(self._remember_ids(topics))

    def _remember_ids(self, topics: list[TopicMetadata]) -> list[TopicMetadata]:
        """Remember the ids of topics, and report topics whose id has changed."""
        for topic in topics:
            known = self._topic_ids.setdefault(topic.name, topic.topic_id)
            if known != topic.topic_id:
                self._topic_ids[topic.name] = topic.topic_id
                self._loss.report(
                    f"Topic {topic.name} was deleted and created again while the query ran: its"
                    " unread records are lost."
                )
        return topics

    def _starts_of_new(self, planner: SourcePlanner, begin: Offsets, end: Offsets) -> Offsets:
        """Return the start offsets of new partitions: their first record."""
        found = planner.earliest(set(end) - set(begin))
        topics = {key.topic for key in begin}
        for key, offset in sorted(found.items()):
            if offset > 0 and key.topic in topics:
                self._loss.report(
                    f"{key} is new and starts at offset {offset}: the offsets before it are lost."
                )
        return found

    def _starts_of_recreated(self, planner: SourcePlanner, begin: Offsets, end: Offsets) -> Offsets:
        """Return the start offsets of partitions that now end before the query's position."""
        renewed = [key for key, offset in end.items() if begin[key] > offset]
        return planner.earliest(renewed)

    def _report_losses(self, begin: Offsets, latest: Offsets) -> None:
        """Report deleted partitions, and partitions that end before the query's position."""
        for key, offset in sorted(begin.items()):
            if key not in latest:
                self._loss.report(f"{key} was deleted; it was read up to offset {offset}.")
            elif latest[key] < offset:
                self._loss.report(
                    f"{key} was read up to offset {offset}, but now ends at {latest[key]}: it was"
                    " truncated, or its topic was created again."
                )

    def _is_too_little(self, begin: Offsets, end: Offsets) -> bool:
        """Return whether the query waits for more records because of `minOffsetsPerTrigger`."""
        options = self._options
        least = options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        size = sum(max(0, end[key] - begin[key]) for key in end)
        passed_ms = (time.monotonic() - self._last_batch_at) * 1000
        return size < least and passed_ms < options.trigger_delay_ms_max
