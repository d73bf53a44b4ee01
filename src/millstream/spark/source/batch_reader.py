"""Reading topics in a batch: `spark.read.format("millstream")`.

Owns the reader that Spark plans with. Readers are pickled: they hold options, never connections.
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
    """Takes the filters that Spark pushes to a reader.

    Where a session has pushing turned off, Spark refuses readers that override `pushFilters`. This
    passes for the method that was not overridden, so that the source works in both.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.narrowing = RangeFilter()

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self.narrowing, left = push_filters(filters)
        return left


class BatchReader(DataSourceReader):
    """What `spark.read` reads with."""

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
            ranges = self._narrowed(
                planner, ranges_between(planner.start(partitions), planner.end(partitions))
            )
        parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        ids = {topic.name: topic.topic_id for topic in topics}
        return [RangePartition(part, ids[part.topic]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._ranges.read(partition)

    def _narrowed(self, planner: SourcePlanner, ranges: list[OffsetRange]) -> list[OffsetRange]:
        narrowing: RangeFilter = self.pushFilters.narrowing  # type: ignore[attr-defined]
        left = narrowing.apply(ranges)
        moment_ms = narrowing.timestamp_ms
        return left if moment_ms is None else planner.since(left, max(0, moment_ms))
