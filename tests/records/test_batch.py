from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import (
    HEADER_BYTES,
    CorruptBatch,
    check_batch,
    check_produced,
    count_records,
    iterate_batches,
    read_header,
    scan,
    stamp,
    stamp_append_time,
    stamp_crc,
)
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.crc import crc32c
from millstream.records.record import Record, decode_records


def _records(count: int = 3, base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + index, 1000 + index, b"k", b"v" * index, []) for index in range(count)
    ]


def _edited(layout: str, position: int, value: int, *, fix_crc: bool = True) -> bytearray:
    batch = build_batch(_records(), producer_id=5, producer_epoch=0, base_sequence=0)
    struct.pack_into(layout, batch, position, value)
    if fix_crc:
        stamp_crc(batch, 0, len(batch))
    return batch


def test_crc_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_header_fields() -> None:
    batch = build_batch(
        _records(4, 70),
        base_offset=70,
        codec=CompressionType.ZSTD,
        leader_epoch=6,
        producer_id=9,
        producer_epoch=3,
        base_sequence=11,
        is_transactional=True,
    )
    for buffer in (bytes(batch), batch, memoryview(batch)):
        header = read_header(buffer)
        assert header.size == len(batch)
        assert (header.base_offset, header.last_offset, header.next_offset) == (70, 73, 74)
        assert (header.leader_epoch, header.magic, header.count) == (6, 2, 4)
        assert (header.base_timestamp, header.max_timestamp) == (1000, 1003)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 11)
        assert header.codec == CompressionType.ZSTD
        assert header.last_sequence == 14
        assert header.has_producer_id
        assert header.is_transactional
        assert not header.is_control
        assert not header.is_append_time
        assert header.delete_horizon_ms is None


def test_sequence_wraps_after_the_largest() -> None:
    batch = build_batch(_records(3), producer_id=1, base_sequence=(1 << 31) - 2)
    assert read_header(batch).last_sequence == 0
    assert read_header(build_batch(_records(3))).last_sequence == -1


def test_header_needs_its_bytes() -> None:
    batch = build_batch(_records())
    for buffer, position in ((batch[:60], 0), (batch, len(batch) - 60), (b"", 0), (batch, -1)):
        with pytest.raises(CorruptBatch):
            read_header(buffer, position)


def test_sound_batches_pass_at_any_position() -> None:
    batch = build_batch(_records(), codec=CompressionType.LZ4)
    assert check_produced(batch) == check_batch(b"xyz" + batch + b"tail", 3) == read_header(batch)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: None, ErrorCode.INVALID_RECORD),
        (lambda: b"", ErrorCode.INVALID_RECORD),
        (lambda: bytes(11), ErrorCode.INVALID_RECORD),
        (lambda: bytes(12), ErrorCode.CORRUPT_MESSAGE),
        (lambda: bytes(8) + b"\0\0\0\x0e" + bytes(4) + b"\x03" + bytes(20), 2),
        (lambda: build_batch(_records())[:-1], ErrorCode.INVALID_RECORD),
        (lambda: build_batch(_records())[:40], ErrorCode.INVALID_RECORD),
        (lambda: build_batch(_records()) * 2, ErrorCode.INVALID_RECORD),
        (lambda: build_batch(_records()) + b"x", ErrorCode.INVALID_RECORD),
        (lambda: _edited(">q", 0, 1), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">i", 8, 13), ErrorCode.CORRUPT_MESSAGE),
        (lambda: _edited(">i", 8, 48), ErrorCode.CORRUPT_MESSAGE),
        (lambda: _edited(">i", 8, -1), ErrorCode.CORRUPT_MESSAGE),
        (lambda: _edited(">i", 8, (1 << 31) - 1), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">b", 16, 1), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">b", 16, 0), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">b", 16, 3), ErrorCode.CORRUPT_MESSAGE),
        (lambda: _edited(">b", 16, -1), ErrorCode.CORRUPT_MESSAGE),
        (lambda: _edited(">I", 17, 1, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (lambda: _edited(">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (lambda: _edited(">h", 21, 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (lambda: _edited(">h", 21, 8), ErrorCode.INVALID_TIMESTAMP),
        (lambda: _edited(">h", 21, 0x20), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">i", 23, -1), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">i", 23, 5), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">i", 53, -1), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">i", 57, 0), ErrorCode.INVALID_RECORD),
        (lambda: _edited(">i", 57, -1), ErrorCode.INVALID_RECORD),
    ],
)
def test_invalid_batches_get_kafkas_error_code(
    make: Callable[[], bytearray | bytes | None], code: ErrorCode
) -> None:
    with pytest.raises(BrokerError) as caught:
        check_produced(make())
    assert caught.value.code == code
    assert caught.value.message


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_broker_errors(data: bytes) -> None:
    with pytest.raises(BrokerError):
        check_produced(data)
    with contextlib.suppress(CorruptBatch):
        scan(data)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_flipped_byte_behind_the_crc_is_noticed(position: int, flip: int) -> None:
    batch = build_batch(_records(20))
    position = 17 + position % (len(batch) - 17)
    batch[position] ^= flip
    with pytest.raises(CorruptBatch):
        check_batch(batch)
    with pytest.raises(CorruptBatch):
        scan(batch)


@given(st.integers(0, 300))
def test_scan_stops_at_a_partial_batch(cut: int) -> None:
    first = build_batch(_records(2, 10), base_offset=10)
    second = build_batch(_records(3, 12), base_offset=12)
    cut = min(cut, len(second) - 1)
    found = scan(first + second[:cut])
    assert [(position, header.base_offset) for position, header in found] == [(0, 10)]
    whole = scan(memoryview(first + second))
    assert [position for position, _ in whole] == [0, len(first)]
    assert [header.next_offset for _, header in whole] == [12, 15]


@pytest.mark.parametrize(
    ("layout", "position", "value"),
    [(">q", 0, -1), (">i", 8, 48), (">i", 8, -1), (">b", 16, 1), (">i", 23, -1), (">i", 57, -1)],
)
def test_scan_raises_on_damage_even_without_crc(layout: str, position: int, value: int) -> None:
    bad = _edited(layout, position, value)
    good = build_batch(_records())
    kept: list[int] = []
    with pytest.raises(CorruptBatch):
        kept.extend(at for at, _ in iterate_batches(bad, verify_crc=False))
    with pytest.raises(CorruptBatch):
        kept.extend(at for at, _ in iterate_batches(good + bad))
    assert kept == [0]


def test_scan_can_trust_the_crc() -> None:
    assert len(scan(_edited(">I", 17, 1, fix_crc=False), verify_crc=False)) == 1


def test_empty_batches_left_by_compaction_are_intact() -> None:
    batch = build_batch([], base_offset=40, last_offset_delta=5)
    ((position, header),) = scan(batch)
    assert (position, header.count, header.next_offset) == (0, 0, 46)


def test_stamp_leaves_the_crc_valid() -> None:
    buffer = bytearray(7) + build_batch(_records())
    stamp(memoryview(buffer), 7, 1 << 40, 12)
    header = read_header(buffer, 7)
    assert (header.base_offset, header.leader_epoch, header.count) == (1 << 40, 12, 3)
    assert len(scan(buffer[7:])) == 1


def test_append_time_is_every_records_time() -> None:
    buffer = bytearray(7) + build_batch(_records(), codec=CompressionType.GZIP) + b"next"
    stamp_append_time(memoryview(buffer), 7, 99_999)
    batch = buffer[7:-4]
    ((_, header),) = scan(batch)
    assert header.is_append_time
    assert header.max_timestamp == 99_999
    assert header.codec == CompressionType.GZIP
    assert {record.timestamp for record in decode_records(batch, 1000)} == {99_999}
    assert len(batch) > HEADER_BYTES


def test_records_are_counted_by_their_headers() -> None:
    first = build_batch(_records(3, 10), base_offset=10)
    second = build_batch(_records(2, 13), base_offset=13)
    assert count_records(first + second) == (5, 15)
    assert count_records(first + second + b"\x00" * 60) == (5, 15)
    assert count_records(first[: HEADER_BYTES - 1]) == (0, 0)
