"""Compacting one batch: which records stay, and the bytes of the result.

Pure: batches in, batches out; no files, no clock. The cleaner calls `index_batch` for the dirty
batches, which collects the latest offset of each key. Then it calls `Compactor.compact` for every
batch up to that point, and writes the results.

What stays:
- the record with the highest offset of each key in the map; all records at or above the end of the
  map, byte for byte;
- a tombstone until the delete horizon of its batch. The first compaction that keeps a tombstone
  sets the horizon to now + delete.retention.ms: bit 6 of the attributes says that the base
  timestamp holds it, and timestamp deltas count from it;
- a marker until no data of its transaction is left, and then until a delete horizon in the marker's
  own batch;
- an empty batch, as a bare header, if it is the last one of a producer (its sequence or epoch must
  stay) or the last one of the cleaned range (its offset must stay).
Records without a key are removed and counted. Records of aborted transactions are removed and never
count as the latest of their key.

A rewritten batch keeps its base offset, last offset delta, leader epoch, producer fields,
compression and timestamp type, so offsets and sequences stay valid. A batch that loses nothing is
returned unchanged. The CRC of every batch is checked first: damage never gets a new CRC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from millstream.env.disk import Buffer
from millstream.log.compaction.offset_map import OffsetMap
from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.producers.transaction_trace import TransactionTrace
from millstream.model.sentinel import NO_TIMESTAMP
from millstream.records.batch import (
    APPEND_TIME_FLAG,
    CONTROL_FLAG,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    CorruptBatch,
    stamp_crc,
)
from millstream.records.builder import build_batch
from millstream.records.compression import CompressionType
from millstream.records.control import read_marker
from millstream.records.crc import crc32c
from millstream.records.record import Record, decode_records

#: The latest delete horizon. Timestamp deltas from it still fit into 64 bits.
_HORIZON_MAX_MS: Final = 2**62 - 2


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The rules of one cleaning of one log.

    `round_end_offset` is the first offset that is not cleaned (a segment's base offset).
    `producer_last_offsets` holds the last data offset of each known producer, and
    `producer_last_epochs` the epoch of each producer of which only a marker is known.
    `aborted` are all transactions that were aborted in the cleaned range.
    """

    now_ms: int
    delete_retention_ms: int
    round_end_offset: int
    payload_bytes_max: int
    producer_last_offsets: Mapping[int, int] = field(default_factory=dict)
    producer_last_epochs: Mapping[int, int] = field(default_factory=dict)
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(slots=True)
class CompactionCounts:
    """Counters of one cleaning. `tombstones` are those that stay."""

    records_read: int = 0
    records_kept: int = 0
    tombstones: int = 0
    tombstones_expired: int = 0
    keyless: int = 0
    batches_rewritten: int = 0
    batches_emptied: int = 0


def index_batch(
    batch: memoryview,
    header: BatchHeader,
    known: OffsetMap,
    start: int,
    rules: CompactionRules,
    trace: TransactionTrace,
) -> bool:
    """Add the keys of a dirty batch, from offset `start` on, to the map.

    Returns False if the map is full. Its end offset is then the first record that was not added,
    and the cleaning ends there. Batches must come in offset order.
    """
    _check_crc(batch, header)
    has_no_keys = header.is_control or trace.is_aborted(header)
    if header.count and not has_no_keys:
        for offset, _, key, _, _ in _decode(batch, header, rules):
            if key is None or offset < start:
                continue
            if not known.put(key, offset):
                known.end_offset = max(known.end_offset, offset)
                return False
    known.end_offset = max(known.end_offset, header.next_offset)
    return True


class Compactor:
    """Rewrites the batches of one cleaning, in order. Counts in `counts`."""

    __slots__ = ("_known", "_rules", "_trace", "counts")

    def __init__(self, known: OffsetMap, rules: CompactionRules, trace: TransactionTrace) -> None:
        self._known = known
        self._rules = rules
        #: State of the transactions up to here. The next compactor continues with it.
        self._trace = trace
        self.counts = CompactionCounts()

    def compact(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        """Return `batch` if it loses nothing, its rewritten bytes, or None if nothing is left."""
        _check_crc(batch, header)
        counts = self.counts
        counts.records_read += header.count
        if header.is_control:
            return self._compact_marker(batch, header)
        is_aborted = self._trace.is_aborted(header)
        if header.base_offset >= self._known.end_offset and not is_aborted:
            return self._copied(batch, header)
        kept: list[Record] = []
        if header.count and not is_aborted:
            kept = self._kept(_decode(batch, header, self._rules), header)
        if not kept:
            return self._emptied(batch, header)
        horizon = self._horizon(header, any(record.value is None for record in kept))
        if horizon == header.delete_horizon_ms and len(kept) == header.count:
            return self._copied(batch, header)
        return self._rewritten(header, kept, horizon)

    def _compact_marker(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        marker = read_marker(batch, header)
        is_other = marker is None and header.count > 0
        if is_other or not self._trace.is_idle(header, marker):
            return self._copied(batch, header)
        if header.count == 0 or self._is_past_horizon(header):
            return self._emptied(batch, header)
        horizon = self._horizon(header, has_deletions=True)
        if horizon == header.delete_horizon_ms:
            return self._copied(batch, header)
        return self._rewritten(header, _decode(batch, header, self._rules), horizon)

    def _copied(self, batch: memoryview, header: BatchHeader) -> memoryview:
        self.counts.records_kept += header.count
        return batch

    def _rewritten(
        self, header: BatchHeader, kept: Sequence[Record], horizon: int | None
    ) -> bytearray:
        self.counts.records_kept += len(kept)
        self.counts.batches_rewritten += 1
        return rewrite_batch(header, kept, horizon)

    def _kept(self, records: Sequence[Record], header: BatchHeader) -> list[Record]:
        counts = self.counts
        latest = self._known.get
        end_offset = self._known.end_offset
        deletions_expire = self._is_past_horizon(header)
        kept = []
        for record in records:
            offset, _, key, value, _ = record
            if offset < end_offset:
                if key is None:
                    counts.keyless += 1
                    continue
                if latest(key) > offset:
                    continue
                if value is None and deletions_expire:
                    counts.tombstones_expired += 1
                    continue
            if value is None:
                counts.tombstones += 1
            kept.append(record)
        return kept

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        horizon = header.delete_horizon_ms
        return horizon is not None and horizon <= self._rules.now_ms

    def _horizon(self, header: BatchHeader, has_deletions: bool) -> int | None:
        """Return the delete horizon of the batch, or the one that it must get now."""
        horizon = header.delete_horizon_ms
        if horizon is None and has_deletions:
            return min(self._rules.now_ms + self._rules.delete_retention_ms, _HORIZON_MAX_MS)
        return horizon

    def _emptied(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        is_last_of_round = header.next_offset == self._rules.round_end_offset
        if not is_last_of_round and not self._is_last_of_producer(header):
            return None
        self.counts.batches_emptied += 1
        return batch if header.count == 0 else empty_batch(header)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if not header.has_producer_id:
            return False
        rules, producer_id = self._rules, header.producer_id
        if header.is_control:
            return rules.producer_last_epochs.get(producer_id) == header.producer_epoch
        return rules.producer_last_offsets.get(producer_id) == header.last_offset


def rewrite_batch(header: BatchHeader, kept: Sequence[Record], horizon: int | None) -> bytearray:
    """Return the batch of `header` with only the records `kept` and that delete horizon."""
    return build_batch(
        kept,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        codec=CompressionType(header.codec),
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        append_time_ms=header.max_timestamp if header.is_append_time else None,
        delete_horizon_ms=horizon,
    )


def empty_batch(header: BatchHeader) -> bytearray:
    """Return a batch without records that keeps its offsets, sequences and time."""
    kept_flags = APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
    batch = bytearray(HEADER_BYTES)
    emptied = header._replace(
        batch_length=HEADER_BYTES - LOG_OVERHEAD,
        attributes=header.attributes & kept_flags,
        base_timestamp=NO_TIMESTAMP,
        count=0,
    )
    HEADER.pack_into(batch, 0, *emptied)
    stamp_crc(batch, 0, HEADER_BYTES)
    return batch


def _check_crc(batch: memoryview, header: BatchHeader) -> None:
    if header.magic != MAGIC or crc32c(batch[CRC_START:]) != header.crc:
        raise CorruptBatch(f"the batch at offset {header.base_offset} fails its checksum")


def _decode(batch: memoryview, header: BatchHeader, rules: CompactionRules) -> list[Record]:
    """Return the records. Raises CorruptBatch unless their offsets ascend within the batch."""
    records = decode_records(batch, rules.payload_bytes_max)
    next_offset = header.base_offset
    for record in records:
        if record.offset < next_offset:
            raise CorruptBatch(f"offset {record.offset} is out of order in its batch")
        next_offset = record.offset + 1
    if next_offset > header.next_offset:
        raise CorruptBatch(f"offset {next_offset - 1} is outside of its batch")
    return records
