"""The Arrow decoder, plain and compiled, compared with the decoder that returns objects."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.records.arrow.column import Columns
from millstream.records.arrow.fetch_decoder import FetchDecoder, RowLimits
from millstream.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    iterate_batches,
    read_header,
)
from millstream.records.builder import build_batch, seal_batch
from millstream.records.compression import CompressionType, compress
from millstream.records.control import EndMarker, build_marker
from millstream.records.record import Record, decode_records
from millstream.spark.arrow import arrow_schema, columns_for, record_batch

_ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_SIZE_MAX = 1 << 22
_checks = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=int(os.environ.get("KERNEL_EXAMPLES", "40")),
)

_binary = st.one_of(st.none(), st.binary(max_size=40), st.just(b"long" * 2000))
_headers = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.one_of(st.none(), st.binary(max_size=5)),
    ),
    max_size=3,
)


class Row(NamedTuple):
    """Return a record as the decoder shows it."""

    offset: int
    timestamp_us: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@st.composite
def _batches(draw: st.DrawFn) -> list[bytes]:
    """Batches of a partition from offset 0 on, with gaps as after compaction."""
    batches = []
    offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 4))):
        records = []
        base = offset
        for _ in range(draw(st.integers(0, 5))):
            offset += draw(st.sampled_from([0, 0, 0, 1, 7]))
            timestamp = draw(st.integers(-5, 1 << 41))
            records.append(Record(offset, timestamp, draw(_binary), draw(_binary), draw(_headers)))
            offset += 1
        offset += draw(st.sampled_from([0, 0, 2])) + (not records)
        batch = build_batch(
            records,
            base_offset=base,
            codec=draw(st.sampled_from(CompressionType)),
            append_time_ms=draw(st.sampled_from([None, None, 1 << 40])),
            last_offset_delta=offset - base - 1,
        )
        batches.append(bytes(batch))
        offset += draw(st.sampled_from([0, 0, 3]))
    return batches


_limits = st.builds(
    RowLimits,
    rows_max=st.sampled_from([1, 2, 3, 100]),
    bytes_max=st.sampled_from([1, 100, 1 << 20]),
    plain_bytes_max=st.just(_SIZE_MAX),
)


def _expected(batches: Sequence[bytes], start: int, end: int) -> list[Row]:
    rows = []
    for batch in batches:
        header = read_header(batch)
        for record in decode_records(batch, _SIZE_MAX):
            if start <= record.offset < end:
                timestamp = record.timestamp * 1000
                rows.append(Row(record.offset, timestamp, int(header.is_append_time), *record[2:]))
    return rows


def _rows(batch: pa.RecordBatch) -> list[Row]:
    batch.validate(full=True)
    return [
        Row(
            row["offset"],
            row["timestamp"],
            row["timestampType"],
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"] or ()],
        )
        for row in batch.set_column(
            batch.schema.get_field_index("timestamp"),
            "timestamp",
            batch.column("timestamp").cast(pa.int64()),
        ).to_pylist()
    ]


def _decode_all(
    decoder: FetchDecoder, records: bytes, aborted: Any = None
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of `records` as Arrow record batches."""
    schema = arrow_schema(_ALL)
    for rows in decoder.decode(records, aborted):
        yield record_batch(rows, "topic", 3, schema)
    left = decoder.pop_rows()
    if left is not None:
        yield record_batch(left, "topic", 3, schema)


def _decode(records: bytes, **options: Any) -> list[Row]:
    decoder = FetchDecoder(0, 1 << 62, Columns(headers=True), **options)
    return [row for batch in _decode_all(decoder, records) for row in _rows(batch)]


@_checks
@given(batches=_batches(), limits=_limits, bounds=st.tuples(st.integers(0, 30), st.integers(0, 45)))
def test_rows_are_the_records_of_the_range(
    arrow_decode: ModuleType, batches: list[bytes], limits: RowLimits, bounds: tuple[int, int]
) -> None:
    start, end = bounds
    decoder = FetchDecoder(start, end, Columns(headers=True), limits)
    found = []
    for batch in _decode_all(decoder, b"".join(batches)):
        assert 0 < batch.num_rows <= limits.rows_max
        found += _rows(batch)
    assert found == _expected(batches, start, end)
    log_end = read_header(batches[-1]).next_offset
    assert decoder.next_offset == max(start, min(end, log_end))
    assert decoder.is_done == (end <= max(start, log_end))


@_checks
@given(batches=_batches(), limits=_limits, size=st.integers(1, 600))
def test_rows_run_on_over_responses_that_end_anywhere(
    arrow_decode: ModuleType, batches: list[bytes], limits: RowLimits, size: int
) -> None:
    log = b"".join(batches)
    end = read_header(batches[-1]).next_offset
    decoder = FetchDecoder(0, end, Columns(headers=True), limits)
    schema = arrow_schema(_ALL)
    found = []
    while not decoder.is_done:
        position, header = next(
            (position, header)
            for position, header in iterate_batches(log)
            if header.next_offset > decoder.next_offset
        )
        response = log[position : position + max(size, header.size)]
        for rows in decoder.decode(response):
            assert rows.is_full()
            found += _rows(record_batch(rows, "topic", 3, schema))
    left = decoder.pop_rows()
    if left is not None:
        assert not left.is_full()
        found += _rows(record_batch(left, "topic", 3, schema))
    assert found == _expected(batches, 0, end)
    assert decoder.pop_rows() is None


@pytest.mark.parametrize("name", _ALL)
def test_only_wanted_columns_are_decoded(arrow_decode: ModuleType, name: str) -> None:
    log = build_batch([Record(4, 5, b"key", b"value", [("name", b"content")])], base_offset=4)
    decoder = FetchDecoder(0, 10, columns_for([name]))
    assert list(decoder.decode(log)) == []
    rows = decoder.pop_rows()
    assert rows is not None
    decoded = {
        "key": rows.keys is not None,
        "value": rows.values is not None,
        "headers": rows.headers is not None,
        "timestamp": len(rows.timestamps) > 0,
        "timestampType": len(rows.timestamp_types) > 0,
    }
    assert [each for each, is_there in decoded.items() if is_there] == [
        each for each in decoded if each == name
    ]
    table = record_batch(rows, "topic", 3, arrow_schema([name]))
    full = FetchDecoder(0, 10, Columns(headers=True))
    (whole,) = _decode_all(full, bytes(log))
    assert table.column(name).equals(whole.column(name))


def test_a_column_that_was_not_decoded_cannot_be_shown(arrow_decode: ModuleType) -> None:
    decoder = FetchDecoder(0, 10, Columns(value=False))
    assert list(decoder.decode(build_batch([Record(0, 0, b"key", b"value", [])]))) == []
    rows = decoder.pop_rows()
    assert rows is not None
    for name in ("value", "headers"):
        with pytest.raises(ValueError, match="not decoded"):
            record_batch(rows, "topic", 3, arrow_schema([name]))


def test_times_beyond_microseconds_are_the_nearest(arrow_decode: ModuleType) -> None:
    largest = (1 << 63) - 1
    times = [largest // 1000, largest // 1000 + 1, 1 << 62, -1, -(largest // 1000) - 2, -(1 << 61)]
    batches = [
        build_batch([Record(index, time, None, None, [])], base_offset=index)
        for index, time in enumerate(times)
    ]
    assert [row.timestamp_us for row in _decode(b"".join(batches))] == [
        largest // 1000 * 1000,
        largest,
        largest,
        -1000,
        -largest - 1,
        -largest - 1,
    ]


def test_names_of_headers_become_text(arrow_decode: ModuleType) -> None:
    names = ["plain", "größe", "\udcff", "a\udce9b", ""]
    log = build_batch([Record(0, 0, None, None, [(name, b"") for name in names])])
    (row,) = _decode(bytes(log))
    assert [name for name, _ in row.headers] == ["plain", "größe", "\ufffd", "a\ufffdb", ""]


# Transactions


class Event(NamedTuple):
    """The next step of one producer: append records, or end its transaction."""

    producer_id: int
    action: str


_events = st.lists(
    st.builds(Event, st.integers(1, 3), st.sampled_from(["write", "write", "abort", "commit"])),
    max_size=25,
)


class History:
    """A log with transactions, and the aborted ones as a broker lists them."""

    def __init__(self, events: Sequence[Event], plain_every: int) -> None:
        self.batches: list[bytes] = []
        self.committed: list[int] = []
        #: (producer id, first offset, offset of the marker)
        self.aborted: list[tuple[int, int, int]] = []
        self.offset = 0
        pending: dict[int, list[int]] = {}
        for index, (producer_id, action) in enumerate(events):
            if action == "write":
                pending.setdefault(producer_id, []).extend(self._write(producer_id))
            elif producer_id in pending:
                offsets = pending.pop(producer_id)
                if action == "commit":
                    self.committed += offsets
                else:
                    self.aborted.append((producer_id, offsets[0], self.offset))
                self._mark(producer_id, action == "commit")
            if index % plain_every == 0:
                self.committed += self._write(None)
        # `read_committed` ends at the first open transaction.
        self.stable = min((offsets[0] for offsets in pending.values()), default=self.offset)
        self.committed = sorted(offset for offset in self.committed if offset < self.stable)

    def _write(self, producer_id: int | None) -> list[int]:
        offsets = [self.offset, self.offset + 1]
        records = [Record(offset, offset, None, b"%d" % offset, []) for offset in offsets]
        self.batches.append(
            bytes(
                build_batch(
                    records,
                    base_offset=self.offset,
                    producer_id=-1 if producer_id is None else producer_id,
                    is_transactional=producer_id is not None,
                )
            )
        )
        self.offset += 2
        return offsets

    def _mark(self, producer_id: int, is_commit: bool) -> None:
        marker = build_marker(EndMarker(is_commit, 0), producer_id, 0, 0)
        marker[0:8] = self.offset.to_bytes(8, "big")
        self.batches.append(bytes(marker))
        self.offset += 1

    def fetch(self, offset: int, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Return `count` batches from `offset` on and the aborted transactions among them."""
        found = [
            batch
            for batch in self.batches
            if read_header(batch).last_offset >= offset
            and read_header(batch).base_offset < self.stable
        ][:count]
        upper = read_header(found[-1]).next_offset if found else offset
        aborted = [
            (producer_id, first)
            for producer_id, first, last in self.aborted
            if last >= offset and first < upper
        ]
        return b"".join(found), aborted


@_checks
@given(
    events=_events,
    plain_every=st.integers(1, 6),
    count=st.integers(1, 9),
    start=st.integers(0, 20),
)
def test_aborted_transactions_are_left_out(
    arrow_decode: ModuleType, events: list[Event], plain_every: int, count: int, start: int
) -> None:
    history = History(events, plain_every)
    decoder = FetchDecoder(start, max(start, history.stable), Columns(headers=True))
    found = []
    while not decoder.is_done:
        records, aborted = history.fetch(decoder.next_offset, count)
        before = decoder.next_offset
        for batch in _decode_all(decoder, records, aborted):
            found += [row.offset for row in _rows(batch)]
        assert decoder.next_offset > before
    assert found == [offset for offset in history.committed if offset >= start]


def test_uncommitted_readers_see_all_but_markers(arrow_decode: ModuleType) -> None:
    events = [Event(1, "write"), Event(1, "abort"), Event(2, "write"), Event(2, "commit")]
    history = History(events, 100)
    decoder = FetchDecoder(0, history.offset, Columns(headers=True))
    batches = list(_decode_all(decoder, b"".join(history.batches)))
    assert [row.offset for batch in batches for row in _rows(batch)] == [0, 1, 2, 3, 5, 6]
    assert (decoder.next_offset, decoder.batches) == (8, 5)


def test_only_the_records_of_an_aborted_transaction_are_left_out(arrow_decode: ModuleType) -> None:
    history = History([Event(1, "write"), Event(1, "write"), Event(1, "abort")], 100)
    decoder = FetchDecoder(0, history.offset, Columns(headers=True))
    batches = list(_decode_all(decoder, *history.fetch(0, 9)))
    assert [row.offset for batch in batches for row in _rows(batch)] == [2, 3]
    assert decoder.next_offset == history.offset


# Damage

_SMALL = [
    Record(7, 1000, b"key", b"value", [("name", b"content"), ("null", None)]),
    Record(9, 999, None, b"x" * 70, []),
    Record(10, 2000, b"", None, [("", b"")]),
]


def _small(codec: CompressionType) -> bytes:
    return bytes(build_batch(_SMALL, base_offset=7, codec=codec))


@pytest.mark.parametrize("codec", CompressionType)
def test_truncated_sets_give_whole_batches_only(
    arrow_decode: ModuleType, codec: CompressionType
) -> None:
    batch = _small(codec)
    first = bytes(build_batch([Record(3, 0, None, b"first", [])], base_offset=3))
    for size in range(len(batch)):
        decoder = FetchDecoder(0, 100, Columns(headers=True))
        (only,) = _decode_all(decoder, first + batch[:size])
        assert [row.value for row in _rows(only)] == [b"first"]
        assert (decoder.next_offset, decoder.batches) == (4, 1)


@pytest.mark.parametrize("codec", CompressionType)
def test_no_flipped_bit_goes_unnoticed(arrow_decode: ModuleType, codec: CompressionType) -> None:
    batch = _small(codec)
    sound = _decode(batch)
    for position in range(len(batch)):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            if position in range(8):
                # The CRC does not cover the base offset: all offsets shift together.
                try:
                    rows = _decode(bytes(damaged))
                except CorruptBatch:
                    continue
                # A batch beyond the range is not read.
                assert [row[1:] for row in rows] in ([], [row[1:] for row in sound])
            elif position in range(12, 16):
                assert _decode(bytes(damaged)) == sound
            elif (
                position in range(8, 12)
                and int.from_bytes(damaged[8:12], signed=True) > len(batch) - 12
            ):
                assert _decode(bytes(damaged)) == []
            else:
                with pytest.raises(CorruptBatch, match=r"^CORRUPT_MESSAGE: at offset 0: "):
                    _decode(bytes(damaged))


def _outcome(kernel: ModuleType, data: bytes, count: int, delta_max: int) -> Any:
    """Return the rows that the kernel decodes, or its error message."""
    rows = kernel.Rows(Columns(headers=True), 4, 1 << 20)
    said = ""
    # `bytes` has a spare byte at its end. Here a sanitizer sees a read beyond the end.
    exact = memoryview(array("B", data))
    try:
        run = kernel.RecordRun(exact, count, 100, delta_max, 5, None)
        while run.remaining and not rows.is_full():
            run.read_into(rows, 0, 1 << 62)
    except CorruptBatch as error:
        said = str(error)
    return _rows(record_batch(rows, "topic", 3, arrow_schema(_ALL))), said


@_checks
@given(data=st.binary(max_size=120), count=st.integers(0, 6))
def test_both_decoders_read_arbitrary_bytes_equally(
    plain_arrow_decode: ModuleType, compiled_arrow_decode: ModuleType, data: bytes, count: int
) -> None:
    found = _outcome(plain_arrow_decode, data, count, 1 << 30)
    assert _outcome(compiled_arrow_decode, data, count, 1 << 30) == found


@_checks
@given(
    bodies=st.lists(st.tuples(_binary, _binary, _headers), min_size=1, max_size=4),
    data=st.data(),
)
def test_both_decoders_read_flipped_records_equally(
    plain_arrow_decode: ModuleType,
    compiled_arrow_decode: ModuleType,
    bodies: list[tuple[Any, ...]],
    data: st.DataObject,
) -> None:
    records = [Record(index, index, *body) for index, body in enumerate(bodies)]
    plain = build_batch(records)[HEADER_BYTES:]
    for _ in range(5):
        damaged = bytearray(plain)
        damaged[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
        found = _outcome(plain_arrow_decode, bytes(damaged), len(records), len(records) - 1)
        assert (
            _outcome(compiled_arrow_decode, bytes(damaged), len(records), len(records) - 1) == found
        )


def _sealed(body: bytes, count: int = 1, delta: int = 0, codec: int = 0) -> bytes:
    """Build a batch at offset 7 with a valid CRC and any content."""
    batch = bytearray(HEADER_BYTES) + body
    seal_batch(batch, BatchHeader(7, 0, 0, 2, 0, codec, delta, 0, 0, -1, -1, -1, count))
    return bytes(batch)


def _record(fields: str) -> bytes:
    body = bytes.fromhex(fields)
    return bytes([2 * len(body)]) + body


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (_sealed(b""), "cut off"),
        (_sealed(b"\x00"), "empty"),
        (_sealed(b"\x01"), "empty"),
        (_sealed(b"\x7e\x00"), "length 63 does not fit"),
        (_sealed(b"\xfe\xff\xff\xff\x0f\x00"), "length 2147483647 does not fit"),
        (_sealed(b"\xff\xff\xff\xff\x1f"), "longer than 32 bits"),
        (_sealed(_record("00ffffffffffffffffff7f0001010000")), "longer than 64 bits"),
        (_sealed(_record("0000020101 00")), "offset delta 1 is out of order"),
        (_sealed(_record("0000010101 00")), "offset delta -1 is out of order"),
        (_sealed(2 * _record("000000010100"), 2, 1), "offset delta 0 is out of order"),
        (_sealed(_record("000000030100")), "length -2 does not fit"),
        (_sealed(_record("0000007e0100")), "length 63 does not fit"),
        (_sealed(_record("000000017e00")), "length 63 does not fit"),
        (_sealed(_record("000000010101")), "header count is negative"),
        (_sealed(_record("00000001017e")), "length 63 does not fit"),
        (_sealed(_record("0000000101020100")), "a header has no key"),
        (_sealed(_record("000000010102007e")), "length 63 does not fit"),
        (_sealed(_record("00000001010000")), "longer than its fields"),
        (_sealed(_record("000000010100") + b"\x00"), "more bytes than records"),
        (_sealed(_record("000000010100"), 2, 1), "cut off"),
        (_sealed(_record("000000010100"), (1 << 31) - 1, (1 << 31) - 1), "cut off"),
        (_sealed(b"", codec=5), "codec 5 is unknown"),
        (_sealed(b"not gzip", codec=1), "gzip data cannot"),
        (_sealed(b"not snappy", codec=2), "snappy"),
        (_sealed(b"not lz4", codec=3), "lz4 data cannot"),
        (_sealed(b"not zstd", codec=4), "zstd data cannot"),
    ],
)
def test_damage_is_reported_with_its_offset(
    arrow_decode: ModuleType, batch: bytes, reason: str
) -> None:
    first = build_batch([Record(5, 0, None, None, [])], base_offset=5)
    decoder = FetchDecoder(0, 100, Columns(headers=True))
    with pytest.raises(CorruptBatch, match=f"at offset 6: .*{reason}"):
        list(decoder.decode(bytes(first) + batch))
    rows = decoder.pop_rows()
    assert rows is not None
    assert rows.count >= 1


def test_old_formats_are_rejected(arrow_decode: ModuleType) -> None:
    batch = bytearray(_small(CompressionType.NONE))
    batch[16] = 1
    with pytest.raises(CorruptBatch, match="magic 1"):
        _decode(bytes(batch))


@pytest.mark.parametrize(
    "codec", [codec for codec in CompressionType if codec != CompressionType.NONE]
)
def test_decompression_bombs_are_rejected(arrow_decode: ModuleType, codec: CompressionType) -> None:
    bomb = _sealed(compress(codec, bytes(64 << 20)), codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="at offset 0: "):
            _decode(bomb, limits=RowLimits(plain_bytes_max=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_limits_keep_offsets_in_32_bits() -> None:
    with pytest.raises(ValueError, match="together at most"):
        RowLimits(bytes_max=1 << 30, plain_bytes_max=1 << 30)
    with pytest.raises(ValueError, match="at least 1"):
        RowLimits(rows_max=0)


def test_records_need_no_pyarrow() -> None:
    code = (
        "import sys, millstream.records.arrow.fetch_decoder, millstream.records.arrow.row_encoder;"
        "sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_plain_and_compiled_kernels_are_distinguished(
    plain_arrow_decode: ModuleType, compiled_arrow_decode: ModuleType
) -> None:
    assert not plain_arrow_decode.is_compiled()
    assert compiled_arrow_decode.is_compiled()
