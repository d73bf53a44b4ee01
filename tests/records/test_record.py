from __future__ import annotations

import contextlib
import struct
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.records.batch import CorruptBatch
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.record import Record, decode_records

_both = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _records(count: int) -> list[Record]:
    return [
        Record(index, 5000 - index, b"key", b"value", [("trace", b"1"), ("", None)])
        for index in range(count)
    ]


@pytest.mark.parametrize("codec", CompressionType)
def test_decodes_at_any_position(kernel: ModuleType, codec: CompressionType) -> None:
    batch = build_batch(_records(50), codec=codec)
    assert decode_records(batch, 1 << 20) == _records(50)
    assert decode_records(memoryview(b"abc" + batch + b"rest"), 1 << 20, 3) == _records(50)


def test_fields_are_plain_bytes(kernel: ModuleType) -> None:
    (record,) = decode_records(memoryview(build_batch(_records(1))), 1 << 20)
    assert type(record) is Record
    assert type(record.key) is type(record.value) is bytes
    assert type(record.headers) is list


def test_header_names_that_are_not_utf8_survive(kernel: ModuleType) -> None:
    name = b"\xff\xfeabc".decode("utf-8", "surrogateescape")
    batch = build_batch([Record(0, 0, None, None, [(name, b"x")])])
    assert b"\xff\xfeabc" in batch
    assert decode_records(batch, 1000)[0].headers == [(name, b"x")]


@pytest.mark.parametrize("codec", CompressionType)
def test_size_limit(kernel: ModuleType, codec: CompressionType) -> None:
    batch = build_batch([Record(0, 0, None, bytes(10_000), [])], codec=codec)
    assert len(decode_records(batch, 11_000)) == 1
    with pytest.raises(CorruptBatch):
        decode_records(batch, 10_000)


@pytest.mark.parametrize(
    ("layout", "position", "value"),
    [
        (">q", 0, (1 << 63) - 1),
        (">i", 8, 48),
        (">i", 8, 1 << 30),
        (">b", 16, 1),
        (">h", 21, 5),
        (">h", 21, 4),
        (">q", 27, (1 << 63) - 1),
        (">i", 57, -1),
        (">i", 57, 2),
        (">i", 57, 4),
        (">i", 57, (1 << 31) - 1),
    ],
)
def test_a_wrong_header_is_rejected(
    kernel: ModuleType, layout: str, position: int, value: int
) -> None:
    records = [Record(index, index, b"k", b"v", []) for index in range(3)]
    batch = build_batch(records)
    struct.pack_into(layout, batch, position, value)
    with pytest.raises(CorruptBatch):
        decode_records(batch, 1 << 20)


@_both
@given(
    codec=st.sampled_from(list(CompressionType)),
    flips=st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damage_raises_only_corrupt_batch(
    kernel: ModuleType, codec: CompressionType, flips: list[tuple[int, int]]
) -> None:
    batch = build_batch(_records(5), codec=codec)
    for position, flip in flips:
        batch[position % len(batch)] ^= flip
    with contextlib.suppress(CorruptBatch):
        decode_records(batch, 10_000)
