"""What compaction does to one batch: which records stay, and the bytes of what is left.

Pure: batches in, batches out; no files, no clock. The cleaner reads segments, calls `index_batch`
on the dirty ones to learn the latest offset of each key, then `Compactor.compact` on every batch
up to there, and writes what comes back.

What stays:
- of each key only the record with the highest offset that the map knows; records at or past the
  end of the map all stay, byte for byte;
- a deletion (a record without a value) until the batch's delete horizon has passed. The first
  compaction that keeps a deletion sets the horizon to now + delete.retention.ms: bit 6 of the
  attributes says that the base timestamp holds it, and the timestamp deltas count from there;
- a marker of a transaction, until none of the transaction's data is left and, from when that was
  first noticed, another delete.retention.ms has passed: the same horizon, in the marker's batch;
- a batch with nothing left in it, as a bare header, when it is the last one of a producer (its
  sequence number must survive, or its epoch) or the last one of the round (its offset must).
A record without a key has no place in a compacted topic: it is dropped and counted. Records of an
aborted transaction are dropped and never count as the latest of their key.

A rewritten batch keeps its base offset, last offset delta, leader epoch, producer fields, codec
and timestamp type, so offsets and sequence numbers mean what they meant. A batch that loses nothing
is returned as it came. Every batch's CRC is checked before anything else: damage is never given a
fresh CRC.
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

#: Far enough away for ever, near enough for timestamps to be told as distances from it.
_HORIZON_MAX_MS: Final = 2**62 - 2


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """The limits of one round over one log.

    `round_end_offset` is the first offset that the round may not touch (a segment's base offset).
    `producer_last_offsets` holds the last data offset of every producer that is still known, and
    `producer_last_epochs` the epoch of those of which only a marker is.
    `aborted` are all transactions aborted in the range of the round.
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
    """What a round did, in records. `tombstones` are the deletions still there afterwards."""

    records_read: int = 0
    records_kept: int = 0
    tombstones: int = 0
    tombstones_expired: int = 0
    keyless: int = 0
    batches_copied: int = 0
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
    """Put the keys of a dirty batch into the map, from offset `start` on.

    False when the map ran out of room: its end then lies before the first record left out, and
    the round stops there. Batches must come in offset order.
    """
    _check_crc(batch, header)
    is_silent = header.is_control or trace.is_aborted(header)
    if header.count and not is_silent:
        for offset, _, key, _, _ in _decode(batch, header, rules):
            if key is None or offset < start:
                continue
            if not known.put(key, offset):
                known.end_offset = max(known.end_offset, offset)
                return False
    known.end_offset = max(known.end_offset, header.next_offset)
    return True


class Compactor:
    """Rewrites the batches of one round, in order. Counts what it does in `counts`."""

    __slots__ = ("_known", "_rules", "_trace", "counts")

    def __init__(self, known: OffsetMap, rules: CompactionRules, trace: TransactionTrace) -> None:
        self._known = known
        self._rules = rules
        #: Has followed the log up to here; may go on with the next compactor.
        self._trace = trace
        self.counts = CompactionCounts()

    def compact(self, batch: memoryview, header: BatchHeader) -> Buffer | None:
        """What is left of `batch`: itself when nothing changes, other bytes, or None."""
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
        self.counts.batches_copied += 1
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
        """The delete horizon that the batch has, or should have from now on."""
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
    """The batch of `header` with only the records `kept` in it, and that delete horizon."""
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
    """A batch without records that still says which offsets, sequences and time it had."""
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
    """The records, with offsets that ascend within the batch."""
    records = decode_records(batch, rules.payload_bytes_max)
    next_offset = header.base_offset
    for record in records:
        if record.offset < next_offset:
            raise CorruptBatch(f"offset {record.offset} is out of order in its batch")
        next_offset = record.offset + 1
    if next_offset > header.next_offset:
        raise CorruptBatch(f"offset {next_offset - 1} is outside of its batch")
    return records
