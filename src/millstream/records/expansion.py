"""Upper bounds of the decompressed size of LZ4 and zstd data, read from the frames.

Content sizes in frame headers are often missing and may lie. The block structure does not: it tells
the number of blocks and the largest size of each. So one buffer of the bound is always large
enough. A bound stops at the caller's `size_max`. A broken structure raises ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from millstream.records.crc import Buffer

_LZ4_MAGIC: Final = 0x184D2204
_ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_SKIPPABLE_MASK: Final = 0xFFFFFFF0

_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_DICTIONARY: Final = 0x01
#: LZ4 expands one byte to at most 255.
_LZ4_RATIO_MAX: Final = 255

_ZSTD_BLOCK_MAX: Final = 128 * 1024
_ZSTD_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_ZSTD_SIZE_BYTES: Final = (0, 2, 4, 8)

_UINT32: Final = struct.Struct("<I")


def lz4_size_bound(data: Buffer, size_max: int) -> int:
    """Return an upper bound of the decompressed size of the LZ4 frames, at most `size_max`."""
    return _size_bound(data, size_max, _LZ4_MAGIC, _lz4_frame)


def zstd_size_bound(data: Buffer, size_max: int) -> int:
    """Return an upper bound of the decompressed size of the zstd frames, at most `size_max`."""
    return _size_bound(data, size_max, _ZSTD_MAGIC, _zstd_frame)


def _size_bound(
    data: Buffer,
    size_max: int,
    frame_magic: int,
    read_frame: Callable[[Buffer, int, int], tuple[int, int]],
) -> int:
    """Add up the bounds of all frames. Both formats share the layout of skippable frames."""
    bound = 0
    position = 0
    while position < len(data) and bound < size_max:
        magic = _uint32(data, position)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
            position += 8 + _uint32(data, position + 4)
        elif magic == frame_magic:
            frame_bound, position = read_frame(data, position + 4, size_max)
            bound += frame_bound
        else:
            raise ValueError(f"no frame of this format has magic {magic:#x}")
    return min(bound, size_max)


def _lz4_frame(data: Buffer, position: int, size_max: int) -> tuple[int, int]:
    """Return (bound, position after) of the frame whose descriptor is at `position`."""
    flags, block_code = _byte(data, position), _byte(data, position + 1) >> 4 & 7
    if flags >> 6 != 1 or block_code < 4:
        raise ValueError("unknown LZ4 frame version or block size")
    block_max = 1 << (8 + 2 * block_code)
    position += 3
    position += 8 if flags & _LZ4_CONTENT_SIZE else 0
    position += 4 if flags & _LZ4_DICTIONARY else 0
    trailer = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    bound = 0
    while bound < size_max:
        length = _uint32(data, position)
        position += 4
        if length == 0:
            break
        size = length & 0x7FFFFFFF
        bound += size if length != size else min(block_max, size * _LZ4_RATIO_MAX)
        position += size + trailer
    return bound, position + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)


def _zstd_frame(data: Buffer, position: int, size_max: int) -> tuple[int, int]:
    """Return (bound, position after) of the frame whose descriptor is at `position`."""
    descriptor = _byte(data, position)
    is_single_segment = descriptor >> 5 & 1
    size_bytes = _ZSTD_SIZE_BYTES[descriptor >> 6]
    if size_bytes == 0 and is_single_segment:
        size_bytes = 1
    position += 1 + (1 - is_single_segment)
    position += _ZSTD_DICTIONARY_BYTES[descriptor & 3] + size_bytes
    bound = 0
    is_last = 0
    while not is_last and bound < size_max:
        block = _byte(data, position) | _byte(data, position + 1) << 8
        block |= _byte(data, position + 2) << 16
        is_last, kind, size = block & 1, block >> 1 & 3, block >> 3
        if kind == 3:
            raise ValueError("reserved zstd block type")
        position += 3 + (1 if kind == 1 else size)
        bound += _ZSTD_BLOCK_MAX if kind == 2 else size
    return bound, position + (4 if descriptor >> 2 & 1 else 0)


def _byte(data: Buffer, position: int) -> int:
    if position >= len(data):
        raise ValueError("the frame is truncated")
    return data[position]


def _uint32(data: Buffer, position: int) -> int:
    if position + 4 > len(data):
        raise ValueError("the frame is truncated")
    value: int = _UINT32.unpack_from(data, position)[0]
    return value
