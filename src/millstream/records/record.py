"""Records: what a batch holds once it is decompressed and decoded.

Owns the decoded form. Costs time for each record, so the data path stays out of here: compaction,
coordinators, lookups by timestamp and tools use it. What a leader checks in the records of a
produced batch is `validation`.
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

#: A base beyond this could overflow 64 bits with a 31-bit delta added.
_BASE_OFFSET_MAX: Final = (1 << 63) - (1 << 31)


class Record(NamedTuple):
    """One record with its offset and timestamp worked out."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: In the order written; names may repeat. Bytes of a name that are not UTF-8 are kept as
    #: lone surrogates, so that encoding the record again gives the same bytes.
    headers: list[tuple[str, bytes | None]]


def decode_records(batch: Buffer, size_max: int, position: int = 0) -> list[Record]:
    """The records of the batch at `position`, whose CRC the caller has checked or trusts.

    Raises CorruptBatch, and nothing else, where the bytes are not a batch of format v2, do not
    decode to exactly the header's count, or decompress to more than `size_max` bytes.
    """
    header = read_header(batch, position)
    if header.base_offset > _BASE_OFFSET_MAX or header.count < 0:
        raise CorruptBatch(f"base offset {header.base_offset} or count {header.count} is absurd")
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
    """The decompressed bytes of the records of the batch at `position`."""
    return bytes(plain_view(batch, header, size_max, position))


def plain_view(
    batch: Buffer, header: BatchHeader, size_max: int, position: int = 0
) -> bytes | memoryview:
    """`plain_records`, without a copy where the batch is not compressed."""
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} is not {MAGIC}")
    if not HEADER_BYTES <= header.size <= len(batch) - position:
        raise CorruptBatch(f"batch length {header.batch_length} does not fit the bytes there")
    try:
        codec = CompressionType(header.codec)
    except ValueError:
        raise CorruptBatch(f"compression codec {header.codec} is unknown") from None
    end = position + LOG_OVERHEAD + header.batch_length
    return decompress(codec, memoryview(batch)[position + HEADER_BYTES : end], size_max)
