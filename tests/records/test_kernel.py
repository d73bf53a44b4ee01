from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.records.batch import CorruptBatch
from millstream.records.record import Record

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_INT64 = st.integers(_INT64_MIN, _INT64_MAX)
_both = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def test_plain_and_compiled_kernels_are_distinguished(
    plain_kernel: ModuleType, compiled_kernel: ModuleType
) -> None:
    assert not plain_kernel.is_compiled()
    assert compiled_kernel.is_compiled()


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (300, "d804"),
        ((1 << 31) - 1, "feffffff0f"),
        (-(1 << 63), "ffffffffffffffffff01"),
        ((1 << 63) - 1, "feffffffffffffffff01"),
    ],
)
def test_timestamp_delta_is_a_zigzag_varlong(kernel: ModuleType, value: int, encoded: str) -> None:
    data = bytes(kernel.encode([(0, value, None, None, [])], 0, 0))
    assert data[2:-4].hex() == encoded
    assert kernel.decode(Record, data, 1, 0, 0, None)[0].timestamp == value


def _one_record(timestamp: str = "00", offset: str = "00", tail: str = "010100") -> bytes:
    body = bytes.fromhex("00" + timestamp + offset + tail)
    return bytes([len(body) * 2]) + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x01",
        b"\x7f",
        b"\x80",
        _one_record()[:-1],
        _one_record() + b"\x00",
        _one_record(offset="01"),
        _one_record(offset="ffffffff1f"),
        _one_record(offset="ffffffffff01"),
        _one_record(timestamp="ffffffffffffffffff02"),
        _one_record(timestamp="ffffffffffffffffffff01"),
        _one_record(timestamp="feffffffffffffffff01"),
        _one_record(tail="030100"),
        _one_record(tail="7e0100"),
        _one_record(tail="feffffff0f0100"),
        _one_record(tail="010101"),
        _one_record(tail="01017e"),
        _one_record(tail="0101020100"),
        _one_record(tail="010102007e"),
        _one_record(tail="01010200"),
        _one_record(tail="01010000"),
    ],
    ids=lambda data: data.hex() or "empty",
)
def test_damage_raises_corrupt_batch(kernel: ModuleType, data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        kernel.decode(Record, data, 1, 0, 1, None)


@_both
@given(data=st.binary(max_size=200), count=st.integers(0, 5), base=_INT64)
def test_arbitrary_bytes_decode_equally_or_raise_equally(
    plain_kernel: ModuleType, compiled_kernel: ModuleType, data: bytes, count: int, base: int
) -> None:
    _assert_alike(plain_kernel, compiled_kernel, data, count, base)


_headers = st.lists(
    st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3
)
_record = st.tuples(
    st.integers(0, (1 << 31) - 1),
    st.integers(-(1 << 62), 1 << 62),
    st.one_of(st.none(), st.binary(max_size=200)),
    st.one_of(st.none(), st.binary(max_size=200)),
    _headers,
)


@_both
@given(records=st.lists(_record, max_size=5), data=st.data())
def test_flipped_bytes_decode_equally_or_raise_equally(
    plain_kernel: ModuleType,
    compiled_kernel: ModuleType,
    records: list[tuple[object, ...]],
    data: st.DataObject,
) -> None:
    encoded = plain_kernel.encode(records, 0, 0)
    assert compiled_kernel.encode(records, 0, 0) == encoded
    assert compiled_kernel.decode(tuple, bytes(encoded), len(records), 0, 0, None) == records
    _assert_alike(plain_kernel, compiled_kernel, bytes(encoded), len(records), 0)
    if encoded:
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position] ^= data.draw(st.integers(1, 255))
        _assert_alike(plain_kernel, compiled_kernel, bytes(encoded), len(records), 0)


def _assert_alike(
    plain: ModuleType, compiled: ModuleType, data: bytes, count: int, base: int
) -> None:
    for call in (
        lambda module: module.decode(tuple, data, count, 0, base, None),
        lambda module: module.find_rejected(data, count, base, _INT64_MIN, _INT64_MAX, True, 2),
        lambda module: module.find_rejected(data, count, base, -1000, 1000, False, 100),
    ):
        outcomes = []
        for module in (plain, compiled):
            try:
                outcomes.append(call(module))
            except CorruptBatch as error:
                outcomes.append(error.message)
        assert outcomes[0] == outcomes[1]
