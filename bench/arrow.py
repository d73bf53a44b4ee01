"""`python -m bench.arrow`: compares the Arrow kernels with readers that make an object per record.

It prints rows and megabytes of values per second of CPU time, the best of several rounds, for two
conversions: a record set of one partition to Arrow record batches, and Arrow arrays to record
batches of four partitions. The kernels run as installed, compiled or not. The other side uses
`decode_records` and `build_batch`, which are compiled too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from millstream.client.producer.partitioner import by_key
from millstream.records.arrow import arrow_decode
from millstream.records.arrow.fetch_decoder import FetchDecoder
from millstream.records.arrow.row_encoder import BatchProducer, RowEncoder
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record, decode_records
from millstream.spark.arrow import arrow_schema, columns_for, record_batch, record_columns

NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
ROWS = 40_000
BATCH_BYTES = 100_000
PARTITIONS = 4
TIME_MS = 1_700_000_000_000
TIME_TYPE = pa.timestamp("us", "UTC")


def make_records(size: int) -> list[Record]:
    """Return records whose values compress to about a third."""
    text = b'{"order": %d, "customer": "c%05d", "amount": %d.%02d, "note": "%s"} '
    records = []
    for row in range(ROWS):
        piece = text % (row, row * 7919 % 30_000, row * 31 % 997, row % 100, b"on its way")
        value = (piece * (size // len(piece) + 1))[:size]
        records.append(Record(row, TIME_MS + row, b"key%06d" % (row % 5000), value, []))
    return records


def record_set(records: list[Record], size: int, codec: CompressionType) -> bytes:
    per_batch = max(1, BATCH_BYTES // (size + 24))
    parts = (records[start : start + per_batch] for start in range(0, len(records), per_batch))
    return b"".join(build_batch(part, base_offset=part[0].offset, codec=codec) for part in parts)


def decode_kernel(data: bytes) -> Iterator[pa.RecordBatch]:
    decoder = FetchDecoder(0, ROWS, columns_for(NAMES))
    schema = arrow_schema(NAMES)
    for rows in decoder.decode(data):
        yield record_batch(rows, "topic", 0, schema)
    left = decoder.pop_rows()
    if left is not None:
        yield record_batch(left, "topic", 0, schema)


def decode_plain(data: bytes) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(NAMES)
    position = 0
    while position < len(data):
        records = decode_records(data, 1 << 30, position)
        columns = [
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(["topic"] * len(records), pa.string()),
            pa.array([0] * len(records), pa.int32()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([record.timestamp * 1000 for record in records], TIME_TYPE),
            pa.array([0] * len(records), pa.int32()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        position += 12 + int.from_bytes(data[position + 8 : position + 12])


def encode_kernel(table: pa.RecordBatch, codec: CompressionType) -> int:
    encoder = RowEncoder(BatchProducer(1, 0), PARTITIONS, codec)
    columns = record_columns(table["key"], table["value"], None, table["timestamp"])
    batches = encoder.append(columns, None, 0) + encoder.flush()
    return sum(batch.record_count for batch in batches)


def encode_plain(table: pa.RecordBatch, codec: CompressionType) -> int:
    found: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    keys, values = table["key"].to_pylist(), table["value"].to_pylist()
    for key, value, moment in zip(keys, values, times, strict=True):
        records = found[by_key(key, PARTITIONS)]
        records.append(Record(len(records), moment // 1000, key, value, []))
    for records in found:
        build_batch(records, codec=codec, producer_id=1, producer_epoch=0, base_sequence=0)
    return sum(len(records) for records in found)


def rows_per_second(work: Callable[[], int], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        count = work()
        best = min(best, time.process_time() - start)
        assert count == ROWS
    return ROWS / best


def cases(
    size: int, codec: CompressionType
) -> Iterator[tuple[str, Callable[[], int], Callable[[], int]]]:
    records = make_records(size)
    data = record_set(records, size, codec)
    table = pa.Table.from_batches(decode_kernel(data)).combine_chunks().to_batches()[0]
    yield (
        "decode",
        lambda: sum(batch.num_rows for batch in decode_kernel(data)),
        lambda: sum(batch.num_rows for batch in decode_plain(data)),
    )
    yield "encode", lambda: encode_kernel(table, codec), lambda: encode_plain(table, codec)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.arrow", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    form = "compiled" if arrow_decode.is_compiled() else "not compiled"
    table = Table("work", "value", "codec", "M rows/s", "MB/s", "plain", "ratio", title=form)
    for size in (100, 1024):
        for codec in (CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD):
            for name, kernel, plain in cases(size, codec):
                ours = rows_per_second(kernel, options.rounds)
                theirs = rows_per_second(plain, max(1, options.rounds // 3))
                table.add_row(
                    name,
                    f"{size} B",
                    codec.name.lower(),
                    f"{ours / 1e6:.2f}",
                    f"{ours * size / 1e6:.0f}",
                    f"{theirs / 1e6:.2f}",
                    f"{ours / theirs:.1f}",
                )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
