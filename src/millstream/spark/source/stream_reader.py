"""Reading topics in a stream: `spark.readStream.format("millstream")`.

One process plans for the whole life of a query, so what `StreamReader` learns is kept there: the
ids of topics, when a batch was last given. Tasks get a copy of it only to read ranges.

    initialOffset   where a new query begins; a query that has finished a batch is never asked
    latestOffset    where the next batch ends; also finds new partitions and lost topics
    partitions      the ranges of a batch, also of one that is repeated after a restart
    commit          a batch is finished: Spark tells this one batch late, and not of the last one

Spark does not show what a stream reader raises while it is made, but an error of its own about the
reader that is missing. So `stream_reader` makes one that raises it at the first question.
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

from millstream.protocol.cluster_client import ClusterClient, Topic, TopicPartition
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
    """What `spark.readStream` reads with."""
    try:
        return StreamReader(options, schema)
    except SettingError as error:
        return RefusedReader(error)


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says what is wrong with the options of a query, new or going on."""

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
    """Plans the batches of one query. Raises SettingError."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = stream_options(options)
        self._ranges = RangeReader(self._options, requested_columns(schema))
        self._loss = DataLossPolicy(self._options.fail_on_data_loss)
        #: Made when first needed, and never pickled.
        self._cluster: ClusterClient | None = None
        self._progress: GroupProgress | None = None
        #: Ids of topics by name, as they were when last seen.
        self._topic_ids: dict[str, bytes] = {}
        #: The end that a query with the trigger AvailableNow goes to.
        self._target: Offsets | None = None
        #: When a batch was last given, for `maxTriggerDelay`; the first is not held back.
        self._given_at = float("-inf")
        self._latest: Offsets | None = None
        #: Whether the next batch is the first of a query that begins at an offset that moves.
        self._is_pinning = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None, "_progress": None}

    # Planning

    @ConciseErrors()
    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        planner = self._planner()
        start = planner.start(planner.partitions(self._topics(planner.topics())))
        # Asked again after a crash in the first batch, "latest" would be another offset. So the
        # first batch is an empty one: its end, which Spark keeps, is where the query begins.
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
        self._check(begin, latest)
        end = latest if self._target is None else bound_offsets(begin, latest, self._target)
        begin |= self._starts_of_new(planner, begin, end)
        if isinstance(limit, ReadAllAvailable):
            return offsets_to_json(end)
        if self._is_too_little(begin, end):
            return start
        self._given_at = time.monotonic()
        most = self._options.max_offsets_per_trigger
        return offsets_to_json(end if most is None else limit_offsets(begin, end, most))

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        # A batch that is repeated after a restart was planned without asking for the latest.
        found = self._target if self._latest is None else self._latest
        return None if found is None else offsets_to_json(found)

    @ConciseErrors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        planner = self._planner()
        self._target = planner.latest(self._partitions(planner))

    @ConciseErrors()
    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        if self._is_pinning:
            # The first batch again, after a crash: it was an empty one.
            self._is_pinning = False
            return []
        begin, until = offsets_from_json(start), offsets_from_json(end)
        planner = self._planner()
        if not {key.topic for key in until} <= set(self._topic_ids):
            self._partitions(planner)
        begin |= self._starts_of_new(planner, begin, until)
        begin |= self._starts_of_renewed(planner, begin, until)
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

    # In tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._ranges.read(partition)

    # Pieces

    def _planner(self) -> SourcePlanner:
        if self._cluster is None:
            self._cluster = ClusterClient(self._options.connection)
        return SourcePlanner(self._cluster, self._options)

    def _partitions(self, planner: SourcePlanner) -> set[TopicPartition]:
        """The partitions that are read, as they are now; what became of topics is noticed."""
        # A query that goes on without what is lost does so too where that is a whole topic.
        goes_on = self._topic_ids or not self._options.fail_on_data_loss
        topics = planner.found_topics() if goes_on else planner.topics()
        return planner.partitions(self._topics(topics))

    def _topics(self, topics: list[Topic]) -> list[Topic]:
        """The same, remembered by their ids."""
        for topic in topics:
            known = self._topic_ids.setdefault(topic.name, topic.topic_id)
            if known != topic.topic_id:
                self._topic_ids[topic.name] = topic.topic_id
                self._loss.report(
                    f"Topic {topic.name} was deleted and created anew while the query ran: what"
                    " was not read of it is gone."
                )
        return topics

    def _starts_of_new(self, planner: SourcePlanner, begin: Offsets, end: Offsets) -> Offsets:
        """Where partitions begin that were not there before: at their first record."""
        found = planner.earliest(set(end) - set(begin))
        topics = {key.topic for key in begin}
        for key, offset in sorted(found.items()):
            if offset > 0 and key.topic in topics:
                self._loss.report(
                    f"{key} is new, and begins at offset {offset}: the offsets before it are gone."
                )
        return found

    def _starts_of_renewed(self, planner: SourcePlanner, begin: Offsets, end: Offsets) -> Offsets:
        """Where partitions begin again whose offsets went back, if the query goes on with that."""
        renewed = [key for key, offset in end.items() if begin[key] > offset]
        return planner.earliest(renewed)

    def _check(self, begin: Offsets, latest: Offsets) -> None:
        """Report offsets that went back and partitions that went."""
        for key, offset in sorted(begin.items()):
            if key not in latest:
                self._loss.report(f"{key} is gone; it was read up to offset {offset}.")
            elif latest[key] < offset:
                self._loss.report(
                    f"{key} was read up to offset {offset}, but now ends at {latest[key]}: it was"
                    " cut, or its topic was created anew."
                )

    def _is_too_little(self, begin: Offsets, end: Offsets) -> bool:
        """Whether `minOffsetsPerTrigger` has the query wait for more."""
        options = self._options
        least = options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        size = sum(max(0, end[key] - begin[key]) for key in end)
        passed_ms = (time.monotonic() - self._given_at) * 1000
        return size < least and passed_ms < options.trigger_delay_ms_max
