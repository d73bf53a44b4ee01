"""Reading topics in a batch: `spark.read.format("millstream")`.

Owns the reader that Spark plans with, and reading a range in a task. Readers are pickled and go to
other processes: they hold options, never connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from millstream.records.batch import iterate_batches
from millstream.records.record import Record, decode_records
from millstream.spark.connection.cluster import Cluster
from millstream.spark.fetch import FetchPlan, RangeFetcher
from millstream.spark.filter import Narrowing, narrow
from millstream.spark.loss import LossPolicy
from millstream.spark.offsets import OffsetRange, ranges_between, split_ranges
from millstream.spark.options import SourceOptions, batch_options
from millstream.spark.plan import Planner
from millstream.spark.schema import requested_columns, source_schema

__all__ = ["BatchReader", "RangePartition", "RangeReader", "source_schema"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN_BYTES_MAX: Final = 256 << 20


@dataclass
class RangePartition(InputPartition):
    """A range for one task."""

    wanted: OffsetRange
    topic_id: bytes


class RangeReader:
    """Reads ranges in tasks. Can be pickled."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if not isinstance(partition, RangePartition):
            return
        options = self._options
        wanted = partition.wanted
        loss = LossPolicy(options.fail_on_data_loss)
        with Cluster(options.connection) as cluster:
            plan = FetchPlan(wanted, partition.topic_id, options.fetch, loss)
            for found in RangeFetcher(cluster, plan):
                for position, header in iterate_batches(found.records):
                    if header.is_control:
                        continue
                    for record in decode_records(found.records, _PLAIN_BYTES_MAX, position):
                        if wanted.start <= record.offset < wanted.end:
                            yield self._row(wanted, record, int(header.is_append_time))

    def _row(self, wanted: OffsetRange, record: Record, timestamp_type: int) -> tuple[Any, ...]:
        values = {
            "key": record.key,
            "value": record.value,
            "topic": wanted.topic,
            "partition": wanted.partition,
            "offset": record.offset,
            "timestamp": _EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": timestamp_type,
            "headers": record.headers or None,
        }
        return tuple(values[name] for name in self._columns)


class FilterHook:
    """Takes the filters that Spark pushes to a reader.

    Where a session has pushing turned off, Spark refuses readers that override `pushFilters`. This
    passes for the method that was not overridden, so that the source works in both.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.narrowing = Narrowing()

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self.narrowing, left = narrow(filters)
        return left


class BatchReader(DataSourceReader):
    """What `spark.read` reads with."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = batch_options(options)
        self._ranges = RangeReader(self._options, requested_columns(schema))
        self.pushFilters = FilterHook()  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Cluster(options.connection) as cluster:
            planner = Planner(cluster, options)
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

    def _narrowed(self, planner: Planner, ranges: list[OffsetRange]) -> list[OffsetRange]:
        narrowing: Narrowing = self.pushFilters.narrowing  # type: ignore[attr-defined]
        left = narrowing.apply(ranges)
        moment_ms = narrowing.timestamp_ms
        return left if moment_ms is None else planner.since(left, max(0, moment_ms))
