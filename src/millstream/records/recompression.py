"""Recompressing a produced batch for a topic with a compression type of its own.

Costs time per record. Only batches with another compression type than their topic's come here.
"""

from __future__ import annotations

from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import BatchHeader, CorruptBatch
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.crc import Buffer
from millstream.records.record import decode_records


def recompress(
    batch: Buffer,
    header: BatchHeader,
    codec: CompressionType,
    size_max: int,
    level: int | None = None,
) -> bytearray:
    """Return the records of a produced batch, which passed `check_batch`, in a new batch.

    `level` is that of `compress`. Offsets in the new batch count up from 0, as in Kafka. Raises
    INVALID_RECORD where the records do not decode, decompress to more than `size_max` bytes, or
    have timestamps too far apart for one batch.
    """
    try:
        records = decode_records(batch, size_max)
        if any(record.offset != index for index, record in enumerate(records)):
            records = [record._replace(offset=index) for index, record in enumerate(records)]
        return build_batch(
            records,
            codec=codec,
            level=level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_transactional=header.is_transactional,
        )
    except CorruptBatch as error:
        # CORRUPT_MESSAGE would make clients retry the same bytes.
        raise BrokerError(ErrorCode.INVALID_RECORD, error.message) from error
    except ValueError as error:
        raise BrokerError(ErrorCode.INVALID_RECORD, str(error)) from error
