"""Batches with bad records, and the topics that reject them."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from millstream.records.batch import stamp_crc
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.kernel import encode
from millstream.records.record import Record

HOUR_MS = 3_600_000
KEY = b"k"
COMPACTED = {"cleanup.policy": "compact"}
_RECOMPRESSED = {"compression.type": "gzip"}
_BETWEEN = {
    "message.timestamp.before.max.ms": HOUR_MS,
    "message.timestamp.after.max.ms": HOUR_MS,
}


def batch_of(*records: tuple[float, bytes | None], **fields: Any) -> bytearray:
    """Build a batch. Each record has its hours from now (None: no timestamp) and its key."""
    now_ms = time.time_ns() // 1_000_000
    return build_batch(
        [
            Record(index, now_ms + int(hours * HOUR_MS), key, b"value-%d" % index, [])
            for index, (hours, key) in enumerate(records)
        ],
        **fields,
    )


def patched(batch: bytearray, position: int, layout: str, value: int) -> bytearray:
    """Return `batch` with one header field overwritten and a correct CRC."""
    struct.pack_into(layout, batch, position, value)
    stamp_crc(batch, 0, len(batch))
    return batch


class Case(NamedTuple):
    """A batch for a topic with `configs`, and the indexes of its bad records.

    `error` says whether the batch is rejected.
    """

    configs: Mapping[str, object]
    make: Callable[[], bytearray]
    bad: tuple[int, ...] = ()
    error: str | None = None


def _without_timestamps() -> bytearray:
    return build_batch([Record(index, -1, KEY, b"v", []) for index in range(2)])


def _count_beyond_the_records() -> bytearray:
    return patched(patched(batch_of((0, KEY)), 57, ">i", 2), 23, ">i", 1)


def _count_below_the_records() -> bytearray:
    return patched(patched(batch_of((0, KEY), (0, KEY)), 57, ">i", 1), 23, ">i", 0)


def _later_in_the_header() -> bytearray:
    later_ms = time.time_ns() // 1_000_000 + 5 * HOUR_MS
    return patched(batch_of((0, KEY), (0, KEY)), 35, ">q", later_ms)


def _with_offsets(*offsets: int) -> bytearray:
    """Build a batch whose records have other offset deltas than its header."""
    batch = batch_of(*[(0, KEY)] * len(offsets))
    (base_timestamp,) = struct.unpack_from(">q", batch, 27)
    records = [Record(offset, base_timestamp, KEY, b"v", []) for offset in offsets]
    batch[61:] = encode(records, 0, base_timestamp)
    return patched(batch, 8, ">i", len(batch) - 12)


_INVALID_RECORD, _INVALID_TIMESTAMP = "INVALID_RECORD", "INVALID_TIMESTAMP"

#: Batches that Apache Kafka rejects or accepts; Millstream must do the same.
CASES = {
    "one without a key": Case(
        COMPACTED, lambda: batch_of((0, KEY), (0, None), (0, KEY)), (1,), _INVALID_RECORD
    ),
    "all without a key": Case(
        COMPACTED, lambda: batch_of(*[(0, None)] * 5), (0, 1, 2, 3, 4), _INVALID_RECORD
    ),
    "without a key, compact and delete": Case(
        {"cleanup.policy": "compact,delete"},
        lambda: batch_of((0, None), (0, KEY)),
        (0,),
        _INVALID_RECORD,
    ),
    "without a key, append time": Case(
        {**COMPACTED, "message.timestamp.type": "LogAppendTime"},
        lambda: batch_of((-9, KEY), (9, None)),
        (1,),
        _INVALID_RECORD,
    ),
    "without a key, compressed by the broker": Case(
        {**COMPACTED, **_RECOMPRESSED},
        lambda: batch_of((0, KEY), (0, None)),
        (1,),
        _INVALID_RECORD,
    ),
    **{
        f"without a key, {codec.name.lower()}": Case(
            COMPACTED,
            partial(batch_of, (0, None), (0, KEY), (0, None), codec=codec),
            (0, 2),
            _INVALID_RECORD,
        )
        for codec in CompressionType
    },
    "an empty key": Case(COMPACTED, lambda: batch_of((0, b""))),
    "too late by the default": Case(
        {}, lambda: batch_of((0, KEY), (2, None), (0, KEY)), (1,), _INVALID_TIMESTAMP
    ),
    "too late, lz4": Case(
        {},
        lambda: batch_of((2, KEY), (0, KEY), codec=CompressionType.LZ4),
        (0,),
        _INVALID_TIMESTAMP,
    ),
    "as old as can be": Case({}, lambda: batch_of((-90_000, KEY), (0, KEY))),
    "too early in the middle": Case(
        _BETWEEN, lambda: batch_of((0, KEY), (-2, KEY), (0, KEY)), (1,), _INVALID_TIMESTAMP
    ),
    "too early and too late": Case(
        _BETWEEN, lambda: batch_of((-2, KEY), (0, KEY), (2, KEY)), (0, 2), _INVALID_TIMESTAMP
    ),
    "without timestamps": Case(_BETWEEN, _without_timestamps),
    "both flaws": Case(
        {**COMPACTED, **_BETWEEN},
        lambda: batch_of((0, None), (-2, KEY), (0, KEY), (-2, None)),
        (0, 1, 3),
        _INVALID_TIMESTAMP,
    ),
    "a header that tells a later time": Case({}, _later_in_the_header),
    "count beyond the records": Case(COMPACTED, _count_beyond_the_records, (), _INVALID_RECORD),
    "count below the records": Case(COMPACTED, _count_below_the_records, (), _INVALID_RECORD),
    "records that do not decode": Case(
        COMPACTED, lambda: patched(batch_of((0, KEY)), 61, ">B", 0x7E), (), _INVALID_RECORD
    ),
    "count below the records, compressed by the broker": Case(
        _RECOMPRESSED, _count_below_the_records, (), _INVALID_RECORD
    ),
    "a gap in offsets, compressed by the broker": Case(_RECOMPRESSED, lambda: _with_offsets(0, 2)),
    "descending offsets, compressed by the broker": Case(
        _RECOMPRESSED, lambda: _with_offsets(1, 0)
    ),
    "control": Case(
        COMPACTED, lambda: patched(batch_of((0, KEY)), 21, ">h", 0x20), (), _INVALID_RECORD
    ),
}
