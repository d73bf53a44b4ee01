"""What a log knows of its idempotent producers: epochs and the last few batches of each.

Owns the check that makes a retried batch count once, and the snapshot of that state
(`<offset>.snapshot`: the state after all records below that offset). Does not know files.

Snapshot, big endian: version (int16, 1), CRC32C of all that follows (uint32), number of entries
(int32), and per producer: id (int64), epoch (int16), last sequence (int32), last offset (int64),
last offset delta (int32), timestamp (int64), coordinator epoch (int32), first offset of its open
transaction (int64, -1 if none). Only the last batch of a producer survives in a snapshot.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millstream.model.error import BrokerError, ErrorCode
from millstream.records.batch import BatchHeader
from millstream.records.crc import crc32c

#: How many batches back a retry is recognised: what a client may have in flight.
BATCHES_KEPT: Final = 5

_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_VERSION: Final = 1
_SEQUENCE_MODULUS: Final = 1 << 31
_NO_EPOCH: Final = -1


class ProducedBatch(NamedTuple):
    """A batch that was appended."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """One producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_restored",
        "last_timestamp",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        #: The last batches of `epoch`, oldest first, at most BATCHES_KEPT.
        self.batches: list[ProducedBatch] = []
        #: Whether it comes from a snapshot, so that batches before the first of `batches` were
        #: appended but are no longer known one by one.
        self.is_restored = False
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        #: First offset of the open transaction, or -1.
        self.transaction_start = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def has_forgotten(self, header: BatchHeader) -> bool:
        """Whether a batch of this epoch is a recent one from before the snapshot."""
        if not self.is_restored or not 0 < len(self.batches) < BATCHES_KEPT:
            return False
        behind = (self.batches[0].first_sequence - header.last_sequence) % _SEQUENCE_MODULUS
        return 0 < behind < _SEQUENCE_MODULUS // 2


class ProducerState:
    """All producers of one log."""

    __slots__ = ("entries", "is_dirty")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        #: Whether anything changed since the last snapshot.
        self.is_dirty = False

    def check(self, header: BatchHeader, offset: int) -> ProducedBatch | None:
        """Whether a client's batch may be appended at `offset`.

        Returns the batch it repeats, if it does; raises BrokerError if it is out of order or of
        a producer that was fenced. A producer that is not known may start with any sequence: its
        state may have been lost to retention or expiry.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == entry.epoch and entry.batches:
            last = header.last_sequence
            for batch in entry.batches:
                if batch.first_sequence == sequence and batch.last_sequence == last:
                    return batch
        if epoch < entry.epoch:
            raise _refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                header,
                offset,
                f"is of epoch {epoch}, but epoch {entry.epoch} was seen",
            )
        if epoch != entry.epoch:
            if sequence != 0 and entry.epoch != _NO_EPOCH:
                raise _refused(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    header,
                    offset,
                    f"starts epoch {epoch} with sequence {sequence} and not 0",
                )
        elif sequence != (entry.last_sequence + 1) % _SEQUENCE_MODULUS:
            if entry.has_forgotten(header):
                # Clients take this for a success whose offset is not known, which it is.
                raise _refused(
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                    header,
                    offset,
                    f"repeats sequence {sequence}, which is too long ago to know its offset",
                )
            raise _refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                header,
                offset,
                f"has sequence {sequence} after {entry.last_sequence}",
            )
        if entry.transaction_start >= 0 and not header.is_transactional:
            raise _refused(
                ErrorCode.INVALID_TXN_STATE, header, offset, "is not part of its open transaction"
            )
        return None

    def append(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Note a batch that was appended at `base_offset`, from a client or from a leader."""
        self.is_dirty = True
        entry = self.entries.get(header.producer_id)
        epoch = header.producer_epoch
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_id, epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.is_restored = False
        entry.last_timestamp = max_timestamp
        if header.is_control:
            # A marker ends the transaction. It carries no sequence.
            entry.transaction_start = -1
            return
        batches = entry.batches
        if len(batches) >= BATCHES_KEPT:
            del batches[0]
        batches.append(
            ProducedBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                max_timestamp,
            )
        )
        if header.is_transactional and entry.transaction_start < 0:
            entry.transaction_start = base_offset

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers without open transaction that were silent too long; how many."""
        expired = [
            entry.producer_id
            for entry in self.entries.values()
            if entry.transaction_start < 0 and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        if expired:
            self.is_dirty = True
        return len(expired)

    def encode(self) -> bytes:
        """The snapshot."""
        rows = []
        for entry in self.entries.values():
            last = entry.batches[-1] if entry.batches else None
            rows.append(
                _ENTRY.pack(
                    entry.producer_id,
                    entry.epoch,
                    last.last_sequence if last else -1,
                    last.last_offset if last else -1,
                    last.last_offset - last.first_offset if last else 0,
                    entry.last_timestamp,
                    entry.coordinator_epoch,
                    entry.transaction_start,
                )
            )
        body = struct.pack(">i", len(rows)) + b"".join(rows)
        return struct.pack(">hI", _VERSION, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """The state that `encode` wrote; raises ValueError on damage."""
        if len(data) < _HEAD.size:
            raise ValueError(f"a snapshot of {len(data)} bytes is too short")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"snapshot version {version} is unknown")
        if crc32c(memoryview(data)[6:]) != crc:
            raise ValueError("the snapshot's CRC is wrong")
        if len(data) != _HEAD.size + count * _ENTRY.size:
            raise ValueError(f"a snapshot of {len(data)} bytes cannot hold {count} entries")
        state = cls()
        for row in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start = row
            entry = state.entries[producer_id] = ProducerEntry(producer_id, epoch)
            entry.is_restored = True
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator
            entry.transaction_start = start
            if offset >= 0:
                first = (sequence - delta) % _SEQUENCE_MODULUS
                entry.batches.append(
                    ProducedBatch(first, sequence, offset - delta, offset, timestamp)
                )
        return state


def _refused(code: ErrorCode, header: BatchHeader, offset: int, reason: str) -> BrokerError:
    return BrokerError(code, f"batch of producer {header.producer_id} for offset {offset} {reason}")
