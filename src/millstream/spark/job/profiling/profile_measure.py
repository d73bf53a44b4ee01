"""The measures of the profile job, computed by Spark.

Each function is one pass over the topic's records between fixed offsets, so that all passes count
the same records. The driver receives a bounded number of rows: one per partition, per time bucket,
and per large key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.records.compression import CompressionType, compress
from millstream.spark.job.sql_expression import bucket, content_id, readable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row

#: The number of keys that are listed, and of keys in the plot of shares.
KEYS_NAMED: Final = 20
KEYS_RANKED: Final = 1000
QUANTILES: Final = (0.5, 0.9, 0.99)
#: About the size of a producer's batch, which is compressed at once.
_BLOCK_BYTES: Final = 64 * 1024
_SAMPLE_RUN: Final = 2000
_SAMPLE_RECORDS: Final = 200_000
_CODECS: Final = (
    CompressionType.GZIP,
    CompressionType.SNAPPY,
    CompressionType.LZ4,
    CompressionType.ZSTD,
)
_BYTES: Final = "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"


@dataclass(frozen=True, slots=True)
class PartitionTime:
    """The timestamps of one partition. `behind` records are older than a record before them."""

    partition: int
    records: int
    first_s: float
    last_s: float
    behind: int
    behind_s_max: float


@dataclass(frozen=True, slots=True)
class LoadShare:
    """The load of a partition, or of a time bucket that starts at `at` seconds since 1970."""

    at: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """The load of a topic. Sizes include key and value; `sizes` has one per quantile."""

    records: int
    bytes: int
    null_keys: int
    null_values: int
    sizes: tuple[int, ...]
    size_max: int
    partitions: tuple[LoadShare, ...]
    buckets: tuple[LoadShare, ...]


@dataclass(frozen=True, slots=True)
class KeyMeasure:
    """The load of one key. The name is its text, or hex."""

    name: str
    records: int
    bytes: int
    partitions: int


@dataclass(frozen=True, slots=True)
class KeyDistribution:
    """How records are spread over keys. `ranked` has the counts of the largest keys."""

    distinct: int
    named: tuple[KeyMeasure, ...]
    ranked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompressionSample:
    """The size of a sample under each codec."""

    plain_bytes: int
    packed_bytes: dict[str, int]

    def ratio(self, codec: str) -> float:
        return self.packed_bytes[codec] / self.plain_bytes if self.plain_bytes else 1.0


def times(frame: DataFrame) -> list[PartitionTime]:
    """Measure the timestamps of each partition, and how many records are out of order."""
    before = (
        "max(timestamp) over (partition by partition order by offset "
        "rows between unbounded preceding and 1 preceding) as before"
    )
    late_s = "(unix_micros(before) - unix_micros(timestamp)) / 1e6"
    rows = (
        frame.selectExpr("partition", "timestamp", before)
        .selectExpr("partition", "timestamp", f"{late_s} as late_s")
        .groupBy("partition")
        .agg(
            *_expressions(
                "count(1)",
                "min(unix_micros(timestamp)) / 1e6",
                "max(unix_micros(timestamp)) / 1e6",
                "count_if(late_s > 0)",
                "coalesce(max(late_s) filter (where late_s > 0), 0)",
            )
        )
        .orderBy("partition")
    )
    return [PartitionTime(*row) for row in rows.collect()]


def load(frame: DataFrame, bucket_s: int) -> TopicLoad:
    """Measure the load in total, by partition and by time."""
    from pyspark.sql import functions as f

    listed = ", ".join(map(str, QUANTILES))
    sized = frame.selectExpr(
        "partition",
        f"{bucket('timestamp', bucket_s)} as bucket",
        f"{_BYTES} as size",
        "key is null as no_key",
        "value is null as no_value",
    )
    columns = [f.col("partition"), f.col("bucket")]
    sets = [[columns[0]], [columns[1]], []]
    rows = (
        sized.groupingSets(sets, *columns)
        .agg(
            f.grouping_id().alias("grouping"),
            *_expressions(
                "count(1) as records",
                "coalesce(sum(size), 0) as bytes",
                "count_if(no_key) as null_keys",
                "count_if(no_value) as null_values",
                f"approx_percentile(size, array({listed})) as sizes",
                "max(size) as size_max",
            ),
        )
        .collect()
    )
    return _load_of(rows)


def _load_of(rows: list[Row]) -> TopicLoad:
    """Build the load from the rows of three grouping sets."""
    total = next(row for row in rows if row.grouping == 3)
    by_partition = sorted((row for row in rows if row.grouping == 1), key=lambda r: r.partition)
    by_time = sorted((row for row in rows if row.grouping == 2), key=lambda r: r.bucket)
    return TopicLoad(
        total.records,
        total.bytes,
        total.null_keys,
        total.null_values,
        tuple(total.sizes or ()),
        total.size_max or 0,
        tuple(LoadShare(row.partition, row.records, row.bytes) for row in by_partition),
        tuple(LoadShare(row.bucket, row.records, row.bytes) for row in by_time),
    )


def keys(frame: DataFrame) -> KeyDistribution:
    """Measure how records are spread over keys, without records that have no key."""
    counted = (
        frame.where("key is not null")
        .groupBy("key")
        .agg(
            *_expressions(
                "count(1) as records",
                f"sum({_BYTES}) as bytes",
                "approx_count_distinct(partition) as partitions",
            )
        )
    ).persist()
    try:
        distinct = counted.count()
        largest = counted.orderBy("records", ascending=False).limit(KEYS_RANKED)
        ranked = largest.select("records").collect()
        named = largest.limit(KEYS_NAMED).selectExpr(
            f"{readable('key', 100)} as name", "records", "bytes", "partitions"
        )
        found = tuple(KeyMeasure(*row) for row in named.collect())
    finally:
        counted.unpersist()
    return KeyDistribution(distinct, found, tuple(row.records for row in ranked))


def duplicates(frame: DataFrame) -> int:
    """Count the records that repeat the key and value of another record."""
    counted = frame.groupBy(*_expressions(f"{content_id()} as id")).count()
    (row,) = counted.selectExpr("coalesce(sum(count - 1), 0) as extra").collect()
    return int(row.extra)


def packed(frame: DataFrame, records: int) -> CompressionSample:
    """Compress samples of adjacent records from the whole topic with each codec."""
    stride = _SAMPLE_RUN * max(1, records // _SAMPLE_RECORDS)
    sample = frame.where(f"offset % {stride} < {_SAMPLE_RUN}").select("key", "value")
    schema = "codec string, plain bigint, packed bigint"
    sums = (
        sample.mapInArrow(_pack, schema)
        .groupBy("codec")
        .agg(*_expressions("sum(plain) as plain", "sum(packed) as packed"))
    )
    rows = sums.collect()
    plain = max((row.plain for row in rows), default=0)
    return CompressionSample(plain, {row.codec: row.packed for row in rows})


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compress blocks of a batch's size with every codec. Runs on executors."""
    import pyarrow as pa

    plain = 0
    sizes = dict.fromkeys(_CODECS, 0)
    for block in _blocks(batches):
        plain += len(block)
        for codec in _CODECS:
            sizes[codec] += len(compress(codec, block))
    names = [codec.name.lower() for codec in _CODECS]
    columns = [pa.array(names), pa.array([plain] * len(names)), pa.array(list(sizes.values()))]
    yield pa.RecordBatch.from_arrays(columns, ["codec", "plain", "packed"])


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    block = bytearray()
    for batch in batches:
        for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            block += (key or b"") + (value or b"")
            if len(block) >= _BLOCK_BYTES:
                yield bytes(block)
                block.clear()
    if block:
        yield bytes(block)


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.expr(text) for text in texts]
