"""Compression of record batches, in the framings that Kafka's clients use.

Owns the ids and both directions. Decompression is always bounded: the output goes into a buffer of
at most `size_max` bytes, so that a small hostile batch cannot exhaust the memory.

Framings: gzip members (one or more); snappy either raw, as librdkafka writes it, or in xerial
blocks, as Java writes it (16-byte header, then a big-endian length before each raw block); LZ4
frames, written with independent blocks because Java's reader rejects linked ones; zstd frames, with
or without content size.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

import cramjam

from millstream.records.batch import CorruptBatch
from millstream.records.crc import Buffer
from millstream.records.expansion import lz4_size_bound, zstd_size_bound


class CompressionType(IntEnum):
    """The ids of the codecs in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3
#: Kafka's default level, which means the fast compressor.
_LZ4_LEVEL: Final = 9
_GZIP_WBITS: Final = 31
_GZIP_INPUT_BYTES: Final = 16 * 1024
_GZIP_OUTPUT_BYTES: Final = 64 * 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
#: Version 1, compatible with version 1, as all xerial writers write it.
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

#: Magic, flags (version 1, independent blocks), block size 64 KiB, and the checksum of those two.
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_STORED: Final = 0x80000000
_LZ4_END: Final = bytes(4)
_LZ4_FRAME_HEADER_BYTES: Final = 7
_LZ4_CONTENT_SIZE_FLAG: Final = 0x08

_BLOCK_LENGTH: Final = struct.Struct(">I")
_LZ4_LENGTH: Final = struct.Struct("<I")


def compress(codec: CompressionType, data: Buffer, level: int | None = None) -> bytes:
    """Return `data` in the codec's Kafka framing.

    `level` is for gzip (1 to 9, -1 is the default), zstd and lz4 (1 to 17). As in Kafka, level 9 of
    lz4 is the default and fast. Other levels compress more, and more slowly from 3 on.
    """
    if codec == CompressionType.NONE:
        return bytes(data)
    if codec == CompressionType.GZIP:
        compressor = zlib.compressobj(_GZIP_LEVEL if level is None else level, wbits=_GZIP_WBITS)
        return compressor.compress(data) + compressor.flush()
    if codec == CompressionType.SNAPPY:
        return _compress_xerial(data)
    if codec == CompressionType.LZ4:
        return _compress_lz4(data, _LZ4_LEVEL if level is None else level)
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def decompress(codec: CompressionType, data: Buffer, size_max: int) -> bytes | memoryview:
    """Return the plain bytes. Raises CorruptBatch if they exceed `size_max` or are damaged."""
    if codec == CompressionType.NONE:
        if len(data) > size_max:
            raise _too_large(size_max)
        return data if isinstance(data, bytes) else memoryview(data)
    try:
        if codec == CompressionType.GZIP:
            return memoryview(_decompress_gzip(data, size_max))
        if codec == CompressionType.SNAPPY:
            return _decompress_snappy(data, size_max)
        if codec == CompressionType.LZ4:
            return _decompress_into(cramjam.lz4, data, lz4_size_bound(data, size_max))
        return _decompress_into(cramjam.zstd, data, zstd_size_bound(data, size_max))
    except (cramjam.DecompressionError, zlib.error, ValueError, struct.error) as error:
        raise CorruptBatch(f"{codec.name.lower()} data cannot be decompressed: {error}") from error


def _too_large(size_max: int) -> CorruptBatch:
    return CorruptBatch(f"records decompress to more than the {size_max} bytes allowed")


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = _lz4_block(plain, level)
        if len(block) < len(plain):
            parts.append(_LZ4_LENGTH.pack(len(block)))
        else:
            block = bytes(plain)
            parts.append(_LZ4_LENGTH.pack(len(block) | _LZ4_STORED))
        parts.append(block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _lz4_block(plain: memoryview, level: int) -> bytes:
    """Compress at most 64 KiB as one block. Incompressible data does not get shorter.

    The library has levels only for whole frames, so the block is cut out of a frame."""
    if level == _LZ4_LEVEL:
        return bytes(cramjam.lz4.compress_block(plain, store_size=False))
    frame = bytes(cramjam.lz4.compress(plain, level=level))
    start = _LZ4_FRAME_HEADER_BYTES + (8 if frame[4] & _LZ4_CONTENT_SIZE_FLAG else 0)
    (length,) = _LZ4_LENGTH.unpack_from(frame, start)
    start += _LZ4_LENGTH.size
    return frame[start : start + (length & ~_LZ4_STORED)]


def _decompress_gzip(data: Buffer, size_max: int) -> bytearray:
    view = memoryview(data)
    plain = bytearray()
    member = zlib.decompressobj(_GZIP_WBITS)
    for start in range(0, len(view), _GZIP_INPUT_BYTES):
        piece: Buffer = view[start : start + _GZIP_INPUT_BYTES]
        is_full = True
        while piece or is_full:
            if member.eof and piece:
                member = zlib.decompressobj(_GZIP_WBITS)
            output_max = min(_GZIP_OUTPUT_BYTES, size_max - len(plain) + 1)
            output = member.decompress(piece, output_max)
            plain += output
            if len(plain) > size_max:
                raise _too_large(size_max)
            # If the output is not full, zlib has consumed the whole piece.
            is_full = len(output) == output_max
            piece = member.unused_data if member.eof else member.unconsumed_tail
    if not member.eof:
        raise CorruptBatch("gzip data ends in the middle of a member")
    return plain


def _decompress_snappy(data: Buffer, size_max: int) -> bytes | memoryview:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        size = _snappy_size(view, size_max)
        plain = bytearray(size)
        if cramjam.snappy.decompress_raw_into(view, plain) != size:
            raise CorruptBatch("snappy data is shorter than it claims")
        return memoryview(plain)
    blocks = _xerial_blocks(view)
    sizes: list[int] = []
    room = size_max
    for block in blocks:
        size = _snappy_size(block, room)
        room -= size
        sizes.append(size)
    plain = bytearray(size_max - room)
    target = memoryview(plain)
    start = 0
    for block, size in zip(blocks, sizes, strict=True):
        if cramjam.snappy.decompress_raw_into(block, target[start : start + size]) != size:
            raise CorruptBatch("a snappy block is shorter than it claims")
        start += size
    return target


def _snappy_size(block: memoryview, room: int) -> int:
    size: int = cramjam.snappy.decompress_raw_len(block)
    if size > room:
        raise _too_large(room)
    return size


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    """Return the raw blocks of one or more xerial streams, each with a header."""
    blocks: list[memoryview] = []
    position = 0
    while position < len(view):
        if bytes(view[position : position + 8]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += 4
        if length > len(view) - position:
            raise CorruptBatch("a snappy block is longer than what remains")
        blocks.append(view[position : position + length])
        position += length
    return blocks


def _decompress_into(module: object, data: Buffer, bound: int) -> memoryview:
    plain = bytearray(bound)
    size: int = module.decompress_into(data, plain)  # type: ignore[attr-defined]
    return memoryview(plain)[:size]
