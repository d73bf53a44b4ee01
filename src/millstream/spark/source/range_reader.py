"""Reads a range in a task: fetches it and decodes it into Arrow record batches for Spark.

The reader is pickled and sent to other processes. It holds options and opens connections there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millstream.protocol.cluster_client import ClusterClient
from millstream.records.arrow.fetch_decoder import FetchDecoder, RowLimits
from millstream.records.batch import CorruptBatch
from millstream.spark.arrow import arrow_schema, columns_for, record_batch
from millstream.spark.error import ConciseErrors, ProtocolError
from millstream.spark.source.data_loss import DataLossPolicy
from millstream.spark.source.offset_range import OffsetRange
from millstream.spark.source.range_fetcher import FetchPlan, RangeFetcher
from millstream.spark.source.source_options import SourceOptions

#: Small enough that Spark starts early, large enough that the cost per batch is low.
_ROWS_MAX: Final = 10_000
#: Java's Arrow pools buffers up to this size. It allocates larger ones for every batch.
_BYTES_MAX: Final = 1 << 20


@dataclass
class RangePartition(InputPartition):
    """The range of one task."""

    wanted: OffsetRange
    topic_id: bytes


class RangeReader:
    """Reads ranges in tasks. Can be pickled."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range. Spark passes another object if a query has no ranges."""
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
        left = decoder.pop_rows()
        if left is not None:
            yield record_batch(left, wanted.topic, wanted.partition, schema)
