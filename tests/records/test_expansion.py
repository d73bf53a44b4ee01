from __future__ import annotations

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.records.compression import CompressionType, compress
from millstream.records.expansion import lz4_size_bound, zstd_size_bound

_LIMIT = 1 << 30


@settings(deadline=None)
@given(st.binary(max_size=2000), st.integers(0, 200))
def test_bound_is_never_too_small_and_rarely_far_off(data: bytes, repeat: int) -> None:
    data *= repeat
    for frame in (compress(CompressionType.LZ4, data), bytes(cramjam.lz4.compress(data))):
        assert len(data) <= lz4_size_bound(frame, _LIMIT) <= len(data) + (64 << 10)
    frame = compress(CompressionType.ZSTD, data)
    assert len(data) <= zstd_size_bound(frame, _LIMIT) <= len(data) + (128 << 10)


def test_bound_stops_at_the_limit() -> None:
    data = bytes(1 << 20)
    assert lz4_size_bound(compress(CompressionType.LZ4, data), 1000) == 1000
    assert zstd_size_bound(compress(CompressionType.ZSTD, data), 1000) == 1000


def test_skippable_frames_add_nothing() -> None:
    skippable = bytes.fromhex("502a4d18") + (5).to_bytes(4, "little") + b"hello"
    assert lz4_size_bound(skippable, _LIMIT) == 0
    assert zstd_size_bound(skippable * 2, _LIMIT) == 0


@pytest.mark.parametrize("bound", [lz4_size_bound, zstd_size_bound])
@pytest.mark.parametrize("data", [b"\0", b"\0\0\0\0", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd\x20"])
def test_broken_structure_is_a_value_error(bound: object, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|block"):
        bound(data, _LIMIT)  # type: ignore[operator]
