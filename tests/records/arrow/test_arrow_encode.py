"""The Arrow encoder, plain and compiled. Millstream's readers and other clients read its
batches."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.producer.partitioner import by_key
from millstream.model.topic import TopicPartition
from millstream.records.arrow.column import Columns
from millstream.records.arrow.fetch_decoder import FetchDecoder
from millstream.records.arrow.row_encoder import BatchProducer, EncodedBatch, RowEncoder
from millstream.records.batch import HEADER_BYTES, BatchHeader, check_produced
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record, decode_records
from millstream.records.validation import RecordRules, validate_records
from millstream.spark.arrow import (
    HEADER_TYPE,
    arrow_schema,
    number_column,
    record_batch,
    record_columns,
)

with warnings.catch_warnings():
    # kafka-python uses calls that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch

_SIZE_MAX = 1 << 22
_NOW_MS = 1_700_000_000_123
_checks = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=int(os.environ.get("KERNEL_EXAMPLES", "40")),
)


class Row(NamedTuple):
    """An input row."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_us: int | None
    partition: int | None

    def record(self, offset: int) -> Record:
        time = _NOW_MS if self.timestamp_us is None else self.timestamp_us // 1000
        return Record(offset, time, self.key, self.value, self.headers or [])


_binary = st.one_of(st.none(), st.binary(max_size=40), st.just(b"long" * 500))
_header = st.tuples(
    st.text(st.characters(codec="utf-8"), max_size=5), st.one_of(st.none(), st.binary(max_size=5))
)
_row = st.builds(
    Row,
    _binary,
    _binary,
    st.one_of(st.none(), st.lists(_header, max_size=3)),
    st.one_of(st.none(), st.integers(-(1 << 50), 1 << 52)),
    st.one_of(st.none(), st.integers(0, 2)),
)
_rows = st.lists(_row, max_size=12)


class Table(NamedTuple):
    """Rows as Arrow arrays, which may start in the middle of their buffers."""

    key: pa.Array
    value: pa.Array
    headers: pa.Array
    timestamp: pa.Array
    partition: pa.Array

    @classmethod
    def of(cls, rows: Sequence[Row], skip: int = 0) -> Table:
        """Return the rows as arrays, after `skip` rows that the arrays slice off."""
        before = [Row(b"skipped", b"skipped", [("skipped", b"skipped")], 1, 1)] * skip
        every = [*before, *rows]
        lists = [
            None
            if row.headers is None
            else [{"key": name, "value": content} for name, content in row.headers]
            for row in every
        ]
        columns = (
            pa.array([row.key for row in every], pa.binary()),
            pa.array([row.value for row in every], pa.binary()),
            pa.array(lists, HEADER_TYPE),
            pa.array([row.timestamp_us for row in every], pa.timestamp("us", "UTC")),
            pa.array([row.partition for row in every], pa.int32()),
        )
        return cls(*(column.slice(skip) for column in columns))


def _encode(
    encoder: RowEncoder, rows: Sequence[Row], skip: int = 0, now_ms: int = _NOW_MS
) -> list[EncodedBatch]:
    table = Table.of(rows, skip)
    columns = record_columns(table.key, table.value, table.headers, table.timestamp)
    return encoder.append(columns, number_column(table.partition, 4), now_ms)


def _checked(batch: EncodedBatch) -> tuple[BatchHeader, list[Record]]:
    """Check the batch as a broker does, and return its records."""
    header = check_produced(batch.data)
    rules, place = RecordRules(), TopicPartition("t", 0)
    latest = validate_records(batch.data, header, _SIZE_MAX, rules, place)
    assert latest == max(header.max_timestamp, -1)
    assert header.count == batch.record_count
    return header, decode_records(batch.data, _SIZE_MAX)


@_checks
@given(
    parts=st.lists(_rows, max_size=3),
    codec=st.sampled_from(CompressionType),
    batch_bytes=st.sampled_from([1, 150, 1000, 1 << 20]),
    skip=st.integers(0, 9),
)
def test_every_row_is_written_once_where_it_belongs(
    arrow_encode: ModuleType,
    parts: list[list[Row]],
    codec: CompressionType,
    batch_bytes: int,
    skip: int,
) -> None:
    encoder = RowEncoder(BatchProducer(7, 2, is_transactional=True), 3, codec, batch_bytes)
    batches = [batch for rows in parts for batch in _encode(encoder, rows, skip)]
    batches += encoder.flush()
    assert encoder.flush() == []
    found: dict[int, list[Record]] = {0: [], 1: [], 2: []}
    for batch in batches:
        header, records = _checked(batch)
        written = found[batch.partition]
        assert (header.producer_id, header.producer_epoch, header.codec) == (7, 2, codec)
        assert (header.is_transactional, header.base_sequence) == (True, len(written))
        assert header.base_timestamp == records[0].timestamp
        assert header.max_timestamp == max(record.timestamp for record in records)
        if codec == CompressionType.NONE:
            assert len(batch.data) <= max(batch_bytes, HEADER_BYTES) or len(records) == 1
        written += [record._replace(offset=0) for record in records]
    rows = [row for part in parts for row in part]
    for partition, written in found.items():
        sure = [row.record(0) for row in rows if _sure_partition(row) == partition]
        free = [row.record(0) for row in rows if _sure_partition(row) is None]
        assert [record for record in written if record in sure] == sure or any(
            record in free for record in sure
        )
    everything = sorted((record for written in found.values() for record in written), key=repr)
    assert everything == sorted((row.record(0) for row in rows), key=repr)


def _sure_partition(row: Row) -> int | None:
    """Return the partition of the row; None if any will do."""
    if row.partition is not None:
        return row.partition
    return None if row.key is None else by_key(row.key, 3)


@_checks
@given(rows=_rows)
def test_batches_are_byte_for_byte_those_of_the_builder(
    arrow_encode: ModuleType, rows: list[Row]
) -> None:
    encoder = RowEncoder(BatchProducer(9, 1), 1, batch_bytes=1 << 20)
    _encode(encoder, [row._replace(partition=None) for row in rows])
    expected = [row.record(offset) for offset, row in enumerate(rows)]
    assert [batch.data for batch in encoder.flush()] == (
        [build_batch(expected, producer_id=9, producer_epoch=1, base_sequence=0)] if rows else []
    )


@pytest.mark.parametrize("codec", CompressionType)
@settings(parent=_checks, max_examples=15)
@given(rows=st.lists(_row, min_size=1, max_size=8))
def test_other_tools_read_the_output(
    arrow_encode: ModuleType, codec: CompressionType, rows: list[Row]
) -> None:
    encoder = RowEncoder(BatchProducer(), 1, codec)
    _encode(encoder, [row._replace(partition=0) for row in rows])
    (batch,) = encoder.flush()
    theirs = DefaultRecordBatch(bytes(batch.data))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (-1, -1, -1)
    assert [
        Record(each.offset, each.timestamp, each.key, each.value, list(each.headers))
        for each in theirs
    ] == [row.record(offset) for offset, row in enumerate(rows)]


@_checks
@given(rows=st.lists(_row, min_size=1, max_size=8), codec=st.sampled_from(CompressionType))
def test_columns_round_trip(
    arrow_encode: ModuleType, arrow_decode: ModuleType, rows: list[Row], codec: CompressionType
) -> None:
    even = [
        row._replace(
            partition=0,
            timestamp_us=(row.timestamp_us or 0) // 1000 * 1000,
            headers=row.headers or None,
        )
        for row in rows
    ]
    encoder = RowEncoder(BatchProducer(), 1, codec)
    _encode(encoder, even)
    (batch,) = encoder.flush()
    decoder = FetchDecoder(0, len(rows), Columns(headers=True))
    assert list(decoder.decode(batch.data)) == []
    decoded = decoder.pop_rows()
    assert decoded is not None
    names = ("key", "value", "headers", "timestamp")
    back = record_batch(decoded, "topic", 0, arrow_schema(names))
    table = Table.of(even)
    for name in names:
        assert back.column(name).equals(getattr(table, name)), name


# Partitions


@_checks
@given(keys=st.lists(st.binary(max_size=20), max_size=20), count=st.integers(1, 1000))
def test_keys_choose_partitions_as_in_java(
    arrow_encode: ModuleType, keys: list[bytes], count: int
) -> None:
    columns = record_columns(pa.array(keys, pa.binary()), None)
    chosen = arrow_encode.choose_partitions(columns, None, count, 0, 1)
    assert memoryview(chosen).cast("i").tolist() == [by_key(key, count) for key in keys]


def test_rows_without_a_key_go_round_robin(arrow_encode: ModuleType) -> None:
    keys = pa.array([None, b"key", None, None, None, None, None], pa.binary())
    columns = record_columns(keys, pa.array([b""] * 7))
    chosen = memoryview(arrow_encode.choose_partitions(columns, None, 3, 1, 2)).cast("i").tolist()
    assert chosen == [1, by_key(b"key", 3), 1, 2, 2, 0, 0]


def test_round_robin_continues_with_every_call(arrow_encode: ModuleType) -> None:
    encoder = RowEncoder(BatchProducer(), 3)
    row = Row(None, b"value", None, None, None)
    for _ in range(4):
        assert _encode(encoder, [row, row]) == []
    assert sorted((batch.partition, batch.record_count) for batch in encoder.flush()) == [
        (0, 2),
        (1, 4),
        (2, 2),
    ]


@pytest.mark.parametrize("partition", [-1, 3, (1 << 31) - 1])
def test_unknown_partitions_are_rejected(arrow_encode: ModuleType, partition: int) -> None:
    encoder = RowEncoder(BatchProducer(), 3)
    with pytest.raises(ValueError, match=f"partition {partition} is not one of 3"):
        _encode(encoder, [Row(None, None, None, 0, partition)])
    columns = record_columns(None, pa.array([b"value"]))
    with pytest.raises(ValueError, match=f"partition {partition} is not one of 3"):
        arrow_encode.BatchWriter(3, 1000).append(
            columns, partition.to_bytes(4, "little", signed=True), 0
        )


# Edge cases


def test_columns_without_content_take_no_room(arrow_encode: ModuleType) -> None:
    rows = 5
    values = pa.array([b"value"] * rows)
    bare = RowEncoder(BatchProducer(), 1)
    bare.append(record_columns(None, values), None, 0)
    full = RowEncoder(BatchProducer(), 1)
    nulls = record_columns(
        pa.nulls(rows, pa.binary()),
        values,
        pa.nulls(rows, HEADER_TYPE),
        pa.nulls(rows, pa.timestamp("us", "UTC")),
    )
    full.append(nulls, number_column(pa.nulls(rows, pa.int32()), 4), 0)
    assert bare.flush() == full.flush()


def test_strings_are_their_bytes(arrow_encode: ModuleType) -> None:
    encoder = RowEncoder(BatchProducer(), 1)
    encoder.append(record_columns(pa.array(["größe"]), pa.array(["ü"])), None, 0)
    _, records = _checked(encoder.flush()[0])
    assert (records[0].key, records[0].value) == ("größe".encode(), "ü".encode())


def test_sequence_numbers_wrap(arrow_encode: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = RowEncoder(BatchProducer(1, 0), 1)
    encoder._sequences[0] = (1 << 31) - 2
    row = Row(None, b"value", None, None, None)
    sequences = []
    for _ in range(2):
        _encode(encoder, [row] * 3)
        sequences.append(_checked(encoder.flush()[0])[0].base_sequence)
    assert sequences == [(1 << 31) - 2, 1]


@pytest.mark.parametrize("entry", [None, {"key": None, "value": b"content"}])
def test_headers_need_a_name(arrow_encode: ModuleType, entry: Any) -> None:
    headers = pa.array([[{"key": "a", "value": None}], [entry]], HEADER_TYPE)
    encoder = RowEncoder(BatchProducer(), 1)
    with pytest.raises(ValueError, match="a header of row 1 has no key"):
        encoder.append(record_columns(None, None, headers), None, 0)


def test_inconsistent_columns_are_rejected(arrow_encode: ModuleType) -> None:
    def offsets(*numbers: int) -> bytes:
        return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)

    binary = arrow_encode.Binary
    with pytest.raises(ValueError, match="too few for 2 rows"):
        binary(2, 0, None, offsets(0, 1), b"ab")
    with pytest.raises(ValueError, match="too few for 1 rows"):
        binary(1, 1, None, offsets(0, 1), b"ab")
    with pytest.raises(ValueError, match="validity are too few for 9 rows"):
        binary(9, 0, b"\xff", offsets(*range(10)), bytes(9))
    with pytest.raises(ValueError, match="has 1 rows and not 2"):
        arrow_encode.RecordColumns(2, binary(1, 0, None, offsets(0, 1), b"a"), None)
    for first, last in ((0, 3), (2, 1), (-1, 1)):
        keys = binary(1, 0, None, offsets(first, last), b"ab")
        columns = arrow_encode.RecordColumns(1, keys, None)
        with pytest.raises(ValueError, match=f"bytes {first} to {last} of 2"):
            arrow_encode.BatchWriter(1, 1000).append(columns, bytes(4), 0)
        entries = binary(1, 0, None, offsets(0, 2), b"ab")
        headers = arrow_encode.Headers(1, 0, None, offsets(first, last), entries, entries)
        columns = arrow_encode.RecordColumns(1, None, None, headers)
        with pytest.raises(ValueError, match=f"headers {first} to {last} of 1"):
            arrow_encode.BatchWriter(1, 1000).append(columns, bytes(4), 0)
    with pytest.raises(ValueError, match="too few for 1 rows"):
        arrow_encode.BatchWriter(1, 1000).append(
            arrow_encode.RecordColumns(1, None, None), bytes(3), 0
        )


def test_plain_and_compiled_kernels_are_distinguished(
    plain_arrow_encode: ModuleType, compiled_arrow_encode: ModuleType
) -> None:
    assert not plain_arrow_encode.is_compiled()
    assert compiled_arrow_encode.is_compiled()
