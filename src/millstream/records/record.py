"""Records: the content of a batch once it is decompressed and decoded.

Decoding costs time per record, so the data path does not use it. Compaction, coordinators, lookups
by timestamp and tools do. `validation` has the checks of a leader for produced records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    read_header,
)
from millstream.records.compression import CompressionType, decompress
from millstream.records.crc import Buffer
from millstream.records.kernel import decode

#: A larger base offset could overflow 64 bits once a 31-bit delta is added.
_BASE_OFFSET_MAX: Final = (1 << 63) - (1 << 31)


class Record(NamedTuple):
    """One record with its absolute offset and timestamp."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: In the order written; names may repeat. Bytes of a name that are not UTF-8 become lone
    #: surrogates, so that encoding the record again gives the same bytes.
    headers: list[tuple[str, bytes | None]]


def decode_records(batch: Buffer, size_max: int, position: int = 0) -> list[Record]:
    """Return the records of the batch at `position`. The caller has checked its CRC.

    Raises only CorruptBatch: the bytes are no batch of format v2, do not decode to exactly the
    header's count, or decompress to more than `size_max` bytes.
    """
    header = read_header(batch, position)
    if header.base_offset > _BASE_OFFSET_MAX or header.count < 0:
        raise CorruptBatch(
            f"base offset {header.base_offset} or count {header.count} is out of range"
        )
    data = plain_records(batch, header, size_max, position)
    return decode(
        Record,
        data,
        header.count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.is_append_time else None,
    )


def plain_records(batch: Buffer, header: BatchHeader, size_max: int, position: int = 0) -> bytes:
    """Return the decompressed bytes of the records of the batch at `position`."""
    return bytes(plain_view(batch, header, size_max, position))


def plain_view(
    batch: Buffer, header: BatchHeader, size_max: int, position: int = 0
) -> bytes | memoryview:
    """Return the same as `plain_records`, without a copy if the batch is not compressed."""
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} is not {MAGIC}")
    if not HEADER_BYTES <= header.size <= len(batch) - position:
        raise CorruptBatch(f"batch length {header.batch_length} does not fit the available bytes")
    try:
        codec = CompressionType(header.codec)
    except ValueError:
        raise CorruptBatch(f"compression codec {header.codec} is unknown") from None
    end = position + LOG_OVERHEAD + header.batch_length
    return decompress(codec, memoryview(batch)[position + HEADER_BYTES : end], size_max)
