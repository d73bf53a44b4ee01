from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.records.batch import CorruptBatch
from millstream.records.compression import CompressionType, compress, decompress

_COMPRESSING = [codec for codec in CompressionType if codec is not CompressionType.NONE]
_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def _sample(size: int) -> bytes:
    rng = random.Random(7)
    words = [rng.randbytes(rng.randint(1, 12)) for _ in range(50)]
    return b"".join(rng.choices(words, k=size // 6))[:size] + rng.randbytes(min(size, 100))


def _xerial(*blocks: bytes) -> bytes:
    parts = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return _XERIAL + b"".join(struct.pack(">I", len(part)) + part for part in parts)


def _lz4_linked(data: bytes) -> bytes:
    return bytes(cramjam.lz4.compress(data))


def _lz4_content_size(data: bytes) -> bytes:
    """Build a frame with its content size and a valid header checksum."""
    frame = bytearray(compress(CompressionType.LZ4, data))
    descriptor = bytes([frame[4] | 0x08, frame[5]]) + struct.pack("<Q", len(data))
    checksum = _xxh32(descriptor) >> 8 & 0xFF
    return bytes(frame[:4]) + descriptor + bytes([checksum]) + bytes(frame[7:])


def _xxh32(data: bytes) -> int:
    """Return the xxHash-32 of fewer than 16 bytes, seed 0."""
    mask = 0xFFFFFFFF
    state = (0x165667B1 + len(data)) & mask
    position = 0
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        state = (state + word * 0xC2B2AE3D) & mask
        state = (state << 17 | state >> 15) & mask
        state = state * 0x27D4EB2F & mask
        position += 4
    for byte in data[position:]:
        state = (state + byte * 0x165667B1) & mask
        state = (state << 11 | state >> 21) & mask
        state = state * 0x9E3779B1 & mask
    state = (state ^ state >> 15) * 0x85EBCA77 & mask
    state = (state ^ state >> 13) * 0xC2B2AE3D & mask
    return state ^ state >> 16


def _zstd_unknown_size(data: bytes) -> bytes:
    compressor = cramjam.zstd.Compressor()
    compressor.compress(data)
    return bytes(compressor.finish())


@settings(deadline=None)
@given(st.sampled_from(list(CompressionType)), st.binary(max_size=3000), st.integers(0, 60))
def test_round_trip(codec: CompressionType, data: bytes, repeat: int) -> None:
    data *= repeat
    for buffer in (data, bytearray(data), memoryview(data)):
        packed = compress(codec, buffer)
        assert decompress(codec, packed, len(data)) == data
        assert decompress(codec, memoryview(bytearray(packed)), len(data) + 10) == data


@pytest.mark.parametrize("codec", _COMPRESSING)
def test_round_trip_of_megabytes(codec: CompressionType) -> None:
    data = _sample(3_000_000)
    packed = compress(codec, data)
    assert len(packed) < len(data)
    assert decompress(codec, packed, len(data)) == data
    with pytest.raises(CorruptBatch):
        decompress(codec, packed, len(data) - 1)


def test_levels_reach_the_codecs_that_have_them() -> None:
    data = _sample(200_000)
    for codec in (CompressionType.GZIP, CompressionType.ZSTD):
        assert len(compress(codec, data, 9)) < len(compress(codec, data, 1))


def test_lz4_blocks_are_independent_as_java_needs() -> None:
    frame = compress(CompressionType.LZ4, _sample(200_000))
    assert frame[:4].hex() == "04224d18"
    assert frame[4] & 0x20
    assert bytes(cramjam.lz4.decompress(frame)) == _sample(200_000)


_TEXT = _sample(150_000)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (CompressionType.GZIP, gzip.compress(_TEXT[:70_000]) + gzip.compress(_TEXT[70_000:])),
        (CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(_TEXT))),
        (CompressionType.SNAPPY, _xerial(_TEXT[:1], _TEXT[1:70_000], _TEXT[70_000:])),
        (CompressionType.SNAPPY, _xerial(_TEXT[:70_000]) + _xerial(_TEXT[70_000:])),
        (CompressionType.LZ4, _lz4_linked(_TEXT)),
        (CompressionType.LZ4, _lz4_content_size(_TEXT)),
        (
            CompressionType.LZ4,
            _lz4_linked(_TEXT[:70_000]) + compress(CompressionType.LZ4, _TEXT[70_000:]),
        ),
        (CompressionType.ZSTD, bytes(cramjam.zstd.compress(_TEXT))),
        (CompressionType.ZSTD, _zstd_unknown_size(_TEXT)),
        (
            CompressionType.ZSTD,
            _zstd_unknown_size(_TEXT[:70_000]) + _zstd_unknown_size(_TEXT[70_000:]),
        ),
    ],
    ids=[
        "gzip-members",
        "snappy-raw",
        "snappy-xerial",
        "snappy-xerial-twice",
        "lz4-linked",
        "lz4-content-size",
        "lz4-frames",
        "zstd-size",
        "zstd-no-size",
        "zstd-frames",
    ],
)
def test_every_framing_that_clients_send(codec: CompressionType, packed: bytes) -> None:
    assert decompress(codec, packed, len(_TEXT)) == _TEXT
    with pytest.raises(CorruptBatch):
        decompress(codec, packed, len(_TEXT) - 1)
    for cut in (1, 5, len(packed) // 2):
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:-cut], 1 << 20)


_ZEROS = bytes(32 << 20)
_ZSTD_START = b"\x28\xb5\x2f\xfd\x00\x58"


def _snappy_lying() -> bytes:
    """Return raw snappy data that claims 4 GiB and holds almost nothing."""
    return b"\xff\xff\xff\xff\x0f" + bytes(cramjam.snappy.compress_raw(_ZEROS[:1000]))[2:]


def _zstd_repeats(count: int, size: int, is_ended: bool) -> bytes:
    """Return a frame of `count` run-length blocks of `size` zeros each."""
    block = struct.pack("<I", size << 3 | 2)[:3] + b"\0"
    last = struct.pack("<I", size << 3 | 3)[:3] + b"\0"
    return _ZSTD_START + block * count + (last if is_ended else b"")


@pytest.mark.parametrize(
    ("codec", "make"),
    [
        (CompressionType.GZIP, lambda: compress(CompressionType.GZIP, _ZEROS)),
        (CompressionType.GZIP, lambda: compress(CompressionType.GZIP, _ZEROS[: 1 << 16]) * 200),
        (CompressionType.SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(_ZEROS))),
        (CompressionType.SNAPPY, _snappy_lying),
        (CompressionType.SNAPPY, lambda: _xerial(_ZEROS)),
        (CompressionType.SNAPPY, lambda: _xerial(*[_ZEROS[: 1 << 16]] * 200)),
        (CompressionType.LZ4, lambda: compress(CompressionType.LZ4, _ZEROS)),
        (CompressionType.LZ4, lambda: _lz4_linked(_ZEROS)),
        (CompressionType.LZ4, lambda: _lz4_content_size(_ZEROS)[:1000]),
        (CompressionType.ZSTD, lambda: compress(CompressionType.ZSTD, _ZEROS)),
        (CompressionType.ZSTD, lambda: _zstd_unknown_size(_ZEROS)),
        (CompressionType.ZSTD, lambda: _zstd_repeats(200, 1 << 17, True)),
        (CompressionType.ZSTD, lambda: _zstd_repeats(200, 1 << 17, False)),
        (CompressionType.ZSTD, lambda: _zstd_repeats(20, 1 << 20, True)),
    ],
)
def test_decompression_bombs_stay_within_the_limit(
    codec: CompressionType, make: Callable[[], bytes]
) -> None:
    packed = make()
    size_max = 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed, size_max)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size_max * 1.5


def test_repeats_within_the_limit_are_fine() -> None:
    packed = _zstd_repeats(9, 1 << 17, True)
    assert decompress(CompressionType.ZSTD, packed, 10 << 17) == bytes(10 << 17)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(_COMPRESSING), st.binary(max_size=100), st.booleans())
def test_arbitrary_bytes_raise_only_corrupt_batch(
    codec: CompressionType, data: bytes, has_prefix: bool
) -> None:
    if has_prefix:
        data = compress(codec, b"hello" * 10)[: len(data) // 2 + 4] + data
    with contextlib.suppress(CorruptBatch):
        assert len(decompress(codec, data, 1000)) <= 1000


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(_COMPRESSING), st.integers(0, 10_000), st.integers(1, 255))
def test_flipped_bytes_raise_only_corrupt_batch(
    codec: CompressionType, position: int, flip: int
) -> None:
    packed = bytearray(compress(codec, b"some text, some more text" * 40))
    packed[position % len(packed)] ^= flip
    with contextlib.suppress(CorruptBatch):
        assert len(decompress(codec, packed, 2000)) <= 2000


def test_plain_data_has_the_same_limit() -> None:
    assert decompress(CompressionType.NONE, b"abc", 3) == b"abc"
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.NONE, b"abc", 2)


@pytest.mark.parametrize("level", [1, 2, 3, 9, 12, 17])
@pytest.mark.parametrize(
    "data", [b"", b"x", b"words and words " * 20_000, random.Random(1).randbytes(200_000)]
)
def test_lz4_of_every_level_is_read_by_others(level: int, data: bytes) -> None:
    compressed = compress(CompressionType.LZ4, data, level)
    assert lz4.frame.decompress(compressed) == data
    assert bytes(decompress(CompressionType.LZ4, compressed, len(data) + 1)) == data
    # Java's reader rejects blocks that refer to earlier ones.
    assert compressed[4] & 0x20
