"""Control batches: the markers that end a transaction.

Owns the bytes of an end marker. The log decides which marker may be written.

A marker is a batch of one record, with the flags transactional and control and without sequence.
It takes an offset like any record, and no consumer returns it to its user. Big endian:

    key    version (int16, 0), type (int16): 0 abort, 1 commit
    value  version (int16, 0), the epoch of the coordinator that wrote it (int32)

Compaction may remove the record of a control batch. Other types (of a Raft log) are not markers.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millstream.records.batch import BatchHeader, CorruptBatch
from millstream.records.builder import build_batch
from millstream.records.crc import Buffer
from millstream.records.record import Record, decode_records

#: The key of a marker: version and type.
KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0
ABORT: Final = 0
COMMIT: Final = 1
#: Far more than any marker holds. A larger size means damage.
_RECORD_BYTES_MAX: Final = 4096


class EndMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that ended it."""

    is_commit: bool
    coordinator_epoch: int


def build_marker(
    marker: EndMarker, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """Return the control batch for `marker`, ready to be stamped and appended."""
    key = KEY.pack(_VERSION, COMMIT if marker.is_commit else ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(0, timestamp_ms, key, value, [])],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: Buffer, header: BatchHeader, position: int = 0) -> EndMarker | None:
    """Return the marker in the control batch at `position`; None without record or of other type.

    Newer versions start with the same fields. Raises CorruptBatch.
    """
    if header.count == 0:
        return None
    record = decode_records(batch, _RECORD_BYTES_MAX, position)[0]
    if record.key is None or len(record.key) < KEY.size:
        raise CorruptBatch(f"the control batch at offset {header.base_offset} has no type")
    key_version, kind = KEY.unpack_from(record.key)
    if key_version < 0:
        raise CorruptBatch(f"version {key_version} of a control record is negative")
    if kind not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptBatch(f"the marker at offset {header.base_offset} is truncated")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptBatch(f"version {version} of a transaction marker is negative")
    return EndMarker(kind == COMMIT, coordinator_epoch)
