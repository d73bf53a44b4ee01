"""The batch reader: `spark.read.format("millstream")`.

Spark pickles readers, so they hold options and never connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from millstream.protocol.cluster_client import ClusterClient
from millstream.spark.error import ConciseErrors
from millstream.spark.source.offset_range import OffsetRange, ranges_between, split_ranges
from millstream.spark.source.pushed_filter import RangeFilter, push_filters
from millstream.spark.source.range_reader import RangePartition, RangeReader
from millstream.spark.source.source_options import batch_options
from millstream.spark.source.source_planner import SourcePlanner
from millstream.spark.source.source_schema import requested_columns


class FilterHook:
    """Receives the filters that Spark pushes to a reader.

    If filter pushdown is off in a session, Spark rejects readers that override `pushFilters`. This
    object looks like the original method, so that the source works in both cases.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.range_filter = RangeFilter()

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self.range_filter, left = push_filters(filters)
        return left


class BatchReader(DataSourceReader):
    """Plans the ranges of one `spark.read`."""

    @ConciseErrors()
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = batch_options(options)
        self._ranges = RangeReader(self._options, requested_columns(schema))
        self.pushFilters = FilterHook()  # type: ignore[method-assign]

    @ConciseErrors()
    def partitions(self) -> list[InputPartition]:
        options = self._options
        with ClusterClient(options.connection) as cluster:
            planner = SourcePlanner(cluster, options)
            topics = planner.topics()
            partitions = planner.partitions(topics)
            ranges = self._filtered(
                planner, ranges_between(planner.start(partitions), planner.end(partitions))
            )
        parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        ids = {topic.name: topic.topic_id for topic in topics}
        return [RangePartition(part, ids[part.topic]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._ranges.read(partition)

    def _filtered(self, planner: SourcePlanner, ranges: list[OffsetRange]) -> list[OffsetRange]:
        wanted: RangeFilter = self.pushFilters.range_filter  # type: ignore[attr-defined]
        left = wanted.apply(ranges)
        moment_ms = wanted.timestamp_ms
        return left if moment_ms is None else planner.since(left, max(0, moment_ms))
