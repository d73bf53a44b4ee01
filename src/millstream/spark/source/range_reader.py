"""Reading a range in a task: fetched, decoded into Arrow, given to Spark.

Owns what a task needs. It is pickled and goes to other processes: it holds options, and makes its
connections there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millstream.protocol.cluster_client import ClusterClient
from millstream.records.batch import CorruptBatch
from millstream.records.fetched import FetchDecoder, RowLimits
from millstream.spark.arrow import arrow_schema, columns_for, record_batch
from millstream.spark.error import ConciseErrors, ProtocolError
from millstream.spark.source.data_loss import DataLossPolicy
from millstream.spark.source.offset_range import OffsetRange
from millstream.spark.source.range_fetcher import FetchPlan, RangeFetcher
from millstream.spark.source.source_options import SourceOptions

#: Few enough that Spark can begin while more is fetched, many enough to cost little each.
_ROWS_MAX: Final = 10_000
#: Below what Java's Arrow takes from its pool: larger buffers are new memory for every batch.
_BYTES_MAX: Final = 1 << 20


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

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range as record batches; nothing where a query has no ranges."""
        if not isinstance(partition, RangePartition):
            return
        options, wanted = self._options, partition.wanted
        loss = DataLossPolicy(options.fail_on_data_loss)
        plan = FetchPlan(wanted, partition.topic_id, options.fetch, loss)
        with ConciseErrors(), ClusterClient(options.connection) as cluster:
            try:
                yield from self._decode(RangeFetcher(cluster, plan), wanted)
            except CorruptBatch as error:
                raise ProtocolError(f"{wanted.key} is damaged: {error.message}") from error

    def _decode(self, fetched: RangeFetcher, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._columns)
        limits = RowLimits(rows_max=_ROWS_MAX, bytes_max=_BYTES_MAX)
        decoder = FetchDecoder(wanted.start, wanted.end, columns_for(self._columns), limits)
        is_committed = self._options.fetch.is_committed
        for found in fetched:
            decoder.next_offset = max(decoder.next_offset, found.start)
            aborted = found.aborted if is_committed else None
            for rows in decoder.decode(found.records, aborted):
                yield record_batch(rows, wanted.topic, wanted.partition, schema)
        left = decoder.take()
        if left is not None:
            yield record_batch(left, wanted.topic, wanted.partition, schema)
