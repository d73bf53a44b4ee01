"""Building record batches, for coordinators, compaction, tools and tests.

The broker's data path never builds a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.model.sentinel import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, RELATIVE_OFFSET_MAX
from millstream.records.batch import (
    APPEND_TIME_FLAG,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    stamp_crc,
)
from millstream.records.compression import CompressionType, compress
from millstream.records.kernel import encode
from millstream.records.record import Record

_TIMESTAMP_DELTA_MAX: Final = (1 << 62) - 1


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: CompressionType = CompressionType.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    last_offset_delta: int | None = None,
) -> bytearray:
    """Return a batch of `records`, whose offsets ascend from `base_offset` or above.

    `append_time_ms` makes it an append-time batch. Compaction keeps the offset range of a batch
    with `last_offset_delta`, even if no record is left, and sets `delete_horizon_ms`. Raises
    ValueError where offsets or timestamps do not fit the format.
    """
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else 0
    _check_offsets(records, base_offset, last_offset_delta)
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    low = min((record.timestamp for record in records), default=base_timestamp)
    if max(max_timestamp - base_timestamp, base_timestamp - low) > _TIMESTAMP_DELTA_MAX:
        raise ValueError(f"timestamps from {low} to {max_timestamp} do not fit in one batch")

    payload = encode(records, base_offset, base_timestamp)
    batch = bytearray(HEADER_BYTES)
    batch += payload if codec == CompressionType.NONE else compress(codec, payload, level)
    seal_batch(
        batch,
        BatchHeader(
            base_offset,
            0,
            leader_epoch,
            MAGIC,
            0,
            codec
            | (APPEND_TIME_FLAG if append_time_ms is not None else 0)
            | (TRANSACTIONAL_FLAG if is_transactional else 0)
            | (CONTROL_FLAG if is_control else 0)
            | (DELETE_HORIZON_FLAG if delete_horizon_ms is not None else 0),
            last_offset_delta,
            base_timestamp,
            max_timestamp if append_time_ms is None else append_time_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        ),
    )
    return batch


def seal_batch(batch: bytearray, header: BatchHeader) -> None:
    """Write the header of a batch whose records are in place.

    Computes batch length and CRC; those of `header` are ignored.
    """
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD, crc=0))
    stamp_crc(batch, 0, len(batch))


def _check_offsets(records: Sequence[Record], base_offset: int, last_offset_delta: int) -> None:
    if not 0 <= last_offset_delta <= RELATIVE_OFFSET_MAX:
        raise ValueError(
            f"last offset delta {last_offset_delta} is outside 0 to {RELATIVE_OFFSET_MAX}"
        )
    previous = base_offset - 1
    for record in records:
        if record.offset <= previous:
            raise ValueError(f"offset {record.offset} follows {previous}: offsets must ascend")
        previous = record.offset
    if previous > base_offset + last_offset_delta:
        raise ValueError(f"offset {previous} is beyond the batch's last offset")
