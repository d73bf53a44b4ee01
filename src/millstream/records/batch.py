"""The header of a record batch: reading, checking and stamping it in place.

Owns the 61-byte header of format v2 and all checks that need only the header. Does not read records
(see `record`) and never copies a batch.

    bytes  0-7   base offset           set by the leader (stamp), not covered by the CRC
           8-11  batch length          bytes after this field
          12-15  leader epoch          set by the leader (stamp), not covered by the CRC
          16     magic                 2
          17-20  CRC32C                of everything from byte 21 to the end
          21-22  attributes            bits 0-2 codec, 3 append time, 4 transactional, 5 control,
                                       6 delete horizon (base timestamp holds it)
          23-26  last offset delta
          27-34  base timestamp
          35-42  max timestamp
          43-50  producer id
          51-52  producer epoch
          53-56  base sequence
          57-60  record count
          61-    records, compressed together
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, SEQUENCE_MODULUS
from millstream.records.crc import Buffer, crc32c

HEADER_BYTES: Final = 61
#: Base offset and batch length: the bytes that batch length does not count.
LOG_OVERHEAD: Final = 12
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

_LENGTH_POSITION: Final = 8
_LEADER_EPOCH_POSITION: Final = 12
_MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
#: The CRC covers everything from here to the end of the batch.
CRC_START: Final = 21
_ATTRIBUTES_POSITION: Final = 21
_LAST_OFFSET_DELTA_POSITION: Final = 23
_MAX_TIMESTAMP_POSITION: Final = 35
_COUNT_POSITION: Final = 57

_CODEC_MAX: Final = 4
_BATCH_LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD
#: The shortest legacy record set. Anything shorter is damage in every format.
_LEGACY_LENGTH_MIN: Final = 14

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_ATTRIBUTES: Final = struct.Struct(">h")
_CRC: Final = struct.Struct(">I")

_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__


class CorruptBatch(BrokerError):  # noqa: N818 - names a state of bytes, as its users say it
    """The bytes are no intact record batch."""

    __slots__ = ()

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class BatchHeader(NamedTuple):
    """The fields of a batch header, in the order of the bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no use in a header

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def latest_timestamp(self) -> int:
        """The largest timestamp of its records; NO_TIMESTAMP if compaction left no records."""
        return self.max_timestamp if self.count else NO_TIMESTAMP

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The id of the compression type; `CompressionType` raises ValueError if it is unknown."""
        return self.attributes & CODEC_MASK

    @property
    def is_append_time(self) -> bool:
        return self.attributes & APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may remove this batch's tombstones; None if not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; wraps to 0 after 2^31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the unchecked header at `position`. Raises CorruptBatch if it is incomplete."""
    if len(buffer) - position < HEADER_BYTES or position < 0:
        raise CorruptBatch(f"a batch header needs {HEADER_BYTES} bytes at position {position}")
    return _new_tuple(BatchHeader, _unpack_header(buffer, position))


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Check the batch at `position` as a leader checks a produced batch. Returns its header.

    Raises BrokerError with Kafka 4's code: CORRUPT_MESSAGE for damage, otherwise INVALID_RECORD,
    UNSUPPORTED_COMPRESSION_TYPE or INVALID_TIMESTAMP. Does not check the records or the bytes
    after the batch.
    """
    remaining = len(buffer) - position
    if remaining < HEADER_BYTES:
        raise _short_batch(buffer, position)
    header = _new_tuple(BatchHeader, _unpack_header(buffer, position))
    (
        base_offset,
        length,
        _,
        magic,
        crc,
        attributes,
        delta,
        _,
        _,
        producer_id,
        _,
        sequence,
        count,
    ) = header
    size = length + LOG_OVERHEAD
    # One expression for a valid batch. `_rejection` finds which part of it failed.
    if (
        magic == MAGIC
        and HEADER_BYTES <= size <= remaining
        and base_offset == 0
        and crc == crc32c(memoryview(buffer)[position + CRC_START : position + size])
        and 0 < count == delta + 1
        and attributes & (CONTROL_FLAG | APPEND_TIME_FLAG) == 0
        and attributes & CODEC_MASK <= _CODEC_MAX
        and (producer_id < 0 or sequence >= 0)
    ):
        return header
    raise _rejection(header, buffer, position)


def check_produced(records: Buffer | None) -> BatchHeader:
    """Check the `records` field of one partition in a Produce request. Returns the header.

    Since Produce v3 it must be exactly one batch; otherwise raises INVALID_RECORD.
    """
    if not records:
        raise _invalid("a produce request must hold one record batch for each partition")
    header = check_batch(records)
    if header.batch_length + LOG_OVERHEAD != len(records):
        raise _invalid("a produce request must hold exactly one record batch for each partition")
    return header


def is_transactional(batch: Buffer) -> bool:
    """Return whether a batch is part of a transaction. A batch without a whole header is not."""
    if len(batch) < HEADER_BYTES:
        return False
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_POSITION)
    return bool(attributes & TRANSACTIONAL_FLAG)


def _short_batch(buffer: Buffer, position: int) -> BrokerError:
    """Return the error for fewer bytes than a header."""
    remaining = len(buffer) - position
    if remaining >= LOG_OVERHEAD and position >= 0:
        (length,) = _INT32.unpack_from(buffer, position + _LENGTH_POSITION)
        if length < _LEGACY_LENGTH_MIN:
            return CorruptBatch(f"batch length {length} is smaller than any batch")
        if remaining > _MAGIC_POSITION:
            magic = memoryview(buffer)[position + _MAGIC_POSITION]
            if magic not in (0, 1, 2):
                return CorruptBatch(f"magic {magic} is unknown")
    return _invalid(f"{remaining} bytes do not hold a whole record batch")


def _rejection(header: BatchHeader, buffer: Buffer, position: int) -> BrokerError:
    """Return the error for a batch that `check_batch` rejects, in the order of Kafka's checks."""
    remaining = len(buffer) - position
    if header.batch_length < _LEGACY_LENGTH_MIN:
        return CorruptBatch(f"batch length {header.batch_length} is smaller than any batch")
    if not 0 <= header.magic <= MAGIC:
        return CorruptBatch(f"magic {header.magic} is unknown")
    if header.size > remaining:
        return _invalid(f"the batch has {header.size} bytes but only {remaining} are available")
    if header.magic != MAGIC:
        return _invalid(f"only record batches of magic 2 are accepted, not {header.magic}")
    if header.base_offset != 0:
        return _invalid(f"base offset of a produced batch must be 0, not {header.base_offset}")
    damage = _damage(header, buffer, position)
    if damage is not None:
        return damage
    return _rule_broken(header)


def _rule_broken(header: BatchHeader) -> BrokerError:
    """Return the error for the rule that an intact batch breaks."""
    if header.codec > _CODEC_MAX:
        return BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {header.codec} is unknown"
        )
    if header.last_offset_delta < 0 or header.count <= 0:
        return _invalid(
            f"count {header.count} and last offset delta {header.last_offset_delta}"
            " must be of at least one record"
        )
    if header.count != header.last_offset_delta + 1:
        return _invalid(
            f"count {header.count} disagrees with last offset delta {header.last_offset_delta}"
        )
    if header.is_control:
        return _invalid("clients may not write control records")
    if header.is_append_time:
        return BrokerError(
            ErrorCode.INVALID_TIMESTAMP, "producers may not set the timestamp type to append time"
        )
    return _invalid(
        f"base sequence {header.base_sequence} is invalid with producer id {header.producer_id}"
    )


def _damage(header: BatchHeader, buffer: Buffer, position: int) -> CorruptBatch | None:
    """Return the error for a damaged batch at `position`; None if it is intact."""
    if header.batch_length < _BATCH_LENGTH_MIN:
        return CorruptBatch(f"batch length {header.batch_length} is smaller than a header")
    actual = crc32c(memoryview(buffer)[position + CRC_START : position + header.size])
    if actual != header.crc:
        return CorruptBatch(
            f"stored CRC {header.crc:08x} of the batch with base offset {header.base_offset}"
            f" differs from the computed {actual:08x}"
        )
    return None


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raise CorruptBatch if the length or CRC of the batch at `position` is wrong."""
    damage = _damage(header, buffer, position)
    if damage is not None:
        raise damage


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_RECORD, message)


def iterate_batches(
    buffer: Buffer, verify_crc: bool = True, position: int = 0
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole batch from `position` on. Stops at a partial one.

    Raises CorruptBatch at the first damage, after the batches before it.
    """
    view = memoryview(buffer)
    end = len(view)
    while end - position >= HEADER_BYTES:
        header = _new_tuple(BatchHeader, _unpack_header(view, position))
        size = header[1] + LOG_OVERHEAD
        if size < HEADER_BYTES:
            raise CorruptBatch(f"batch length {header[1]} at {position} is smaller than a header")
        if header[3] != MAGIC:
            raise CorruptBatch(f"magic {header[3]} at {position} is not {MAGIC}")
        if header[6] < 0 or header[12] < 0 or header[0] < 0:
            raise CorruptBatch(
                f"base offset {header[0]}, last offset delta {header[6]} and count {header[12]}"
                f" at {position} must not be negative"
            )
        if size > end - position:
            return
        if verify_crc and crc32c(view[position + CRC_START : position + size]) != header[4]:
            raise CorruptBatch(f"CRC of the batch at {position}, offset {header[0]}, is wrong")
        yield position, header
        position += size


def scan(buffer: Buffer, verify_crc: bool = True) -> list[tuple[int, BatchHeader]]:
    """Return (position, header) of all whole batches. Raises CorruptBatch if one is damaged."""
    return list(iterate_batches(buffer, verify_crc))


def count_records(data: Buffer) -> tuple[int, int]:
    """Return the number of records in the whole batches of `data` and the offset after the last.

    Reads three header fields of each batch and checks nothing. (0, 0) where no header fits.
    """
    position = total = last = 0
    end = len(data) - HEADER_BYTES
    if end < 0:
        return 0, 0
    unpack = _INT32.unpack_from
    while position <= end:
        last = position
        total += unpack(data, position + _COUNT_POSITION)[0]
        position += LOG_OVERHEAD + unpack(data, position + _LENGTH_POSITION)[0]
    last_offset_delta = unpack(data, last + _LAST_OFFSET_DELTA_POSITION)[0]
    return total, _INT64.unpack_from(data, last)[0] + last_offset_delta + 1


def stamp(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set base offset and leader epoch. The CRC covers neither."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Set the append time of all records, and recompute the CRC."""
    (length,) = _INT32.unpack_from(buffer, position + _LENGTH_POSITION)
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + _ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_POSITION, attributes | APPEND_TIME_FLAG)
    _INT64.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    stamp_crc(buffer, position, length + LOG_OVERHEAD)


def stamp_max_timestamp(buffer: bytearray | memoryview, position: int, max_timestamp: int) -> None:
    """Set the latest timestamp in the header, and recompute the CRC."""
    (length,) = _INT32.unpack_from(buffer, position + _LENGTH_POSITION)
    _INT64.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    stamp_crc(buffer, position, length + LOG_OVERHEAD)


def stamp_crc(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Recompute the CRC of the batch of `size` bytes at `position`."""
    crc = crc32c(memoryview(buffer)[position + CRC_START : position + size])
    _CRC.pack_into(buffer, position + CRC_POSITION, crc)
