"""What a log knows of its producers: epochs, the last batches and the open transaction of each.

Owns the checks that make a retried batch count once and that fence old producers and coordinators,
and the format of a snapshot. Does not know files.

Snapshot, big endian: version (int16, 1), CRC32C of all that follows (uint32), number of entries
(int32), and per producer: id (int64), epoch (int16), last sequence (int32), last offset (int64),
last offset delta (int32), timestamp (int64), coordinator epoch (int32), first offset of its open
transaction (int64, -1 if none). A snapshot holds only the last batch of each producer.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from millstream.log.index.transaction_index import AbortedTransaction
from millstream.log.producers.open_transactions import OpenTransactions
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_EPOCH, SEQUENCE_MODULUS
from millstream.records.batch import BatchHeader
from millstream.records.control import EndMarker
from millstream.records.crc import crc32c

#: Batches of a producer in which a retry is recognised: a client has at most that many in flight.
BATCHES_KEPT: Final = 5

#: The parts of a snapshot.
SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
SNAPSHOT_VERSION: Final = 1
#: Where the bytes begin that a snapshot's CRC covers.
SNAPSHOT_CRC_START: Final = 6
#: From this transaction version on, every end of a transaction raises the producer's epoch.
_BUMPED_SINCE: Final = 2


class ProducedBatch(NamedTuple):
    """A batch that a producer appended."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_restored",
        "last_timestamp",
        "marker_offset",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        #: The last batches of `epoch`, oldest first, at most BATCHES_KEPT.
        self.batches: list[ProducedBatch] = []
        #: Whether the entry comes from a snapshot, which lacks all batches but the last.
        self.is_restored = False
        self.last_timestamp = -1
        #: Epoch of the coordinator that wrote the last marker, or -1.
        self.coordinator_epoch = -1
        #: First offset of the open transaction, or -1.
        self.transaction_start = -1
        #: Offset of the last marker, or -1. Not in snapshots.
        self.marker_offset = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def has_forgotten(self, header: BatchHeader) -> bool:
        """Return whether a batch of this epoch may be a retry of one that the snapshot lacks."""
        if not self.is_restored or not 0 < len(self.batches) < BATCHES_KEPT:
            return False
        behind = (self.batches[0].first_sequence - header.last_sequence) % SEQUENCE_MODULUS
        return 0 < behind < SEQUENCE_MODULUS // 2


class ProducerState:
    """The state of all producers of one log."""

    __slots__ = ("entries", "is_dirty", "transactions")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.transactions = OpenTransactions()
        #: Whether the state changed since the last snapshot.
        self.is_dirty = False

    def check(self, header: BatchHeader, offset: int) -> ProducedBatch | None:
        """Check a client's batch that is about to be appended at `offset`.

        Returns the earlier batch if this one is a retry. Raises BrokerError if the batch is out of
        order or its producer was fenced. An unknown producer may start with any sequence: its state
        may have expired.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == entry.epoch and entry.batches and sequence >= 0:
            last = header.last_sequence
            for batch in entry.batches:
                if batch.first_sequence == sequence and batch.last_sequence == last:
                    return batch
        if epoch < entry.epoch:
            raise _rejection(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                header,
                offset,
                f"is of epoch {epoch}, but epoch {entry.epoch} was seen",
            )
        is_next = epoch == entry.epoch and sequence == (entry.last_sequence + 1) % SEQUENCE_MODULUS
        # A batch that a coordinator writes for a producer has no sequence.
        if not is_next and sequence >= 0:
            _check_start(entry, header, offset)
        if entry.transaction_start >= 0 and not header.is_transactional:
            raise _rejection(
                ErrorCode.INVALID_TXN_STATE, header, offset, "is not part of its open transaction"
            )
        return None

    def is_past(self, header: BatchHeader) -> bool:
        """Return whether the producer is past this batch: appended it, or began a later epoch."""
        entry = self.entries.get(header.producer_id)
        if entry is None or header.producer_epoch > entry.epoch:
            return False
        if header.producer_epoch < entry.epoch:
            return True
        ahead = (entry.last_sequence - header.base_sequence) % SEQUENCE_MODULUS
        return bool(entry.batches) and ahead < SEQUENCE_MODULUS // 2

    def append(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Record a data batch that was appended at `base_offset`."""
        self.is_dirty = True
        entry = self.entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._enter_epoch(header)
        entry.last_timestamp = max_timestamp
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
            self.transactions.begin(base_offset, header.producer_id)

    def _enter_epoch(self, header: BatchHeader) -> ProducerEntry:
        """Return the entry of the batch's producer, moved to the batch's epoch."""
        entry = self.entries.get(header.producer_id)
        epoch = header.producer_epoch
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_id, epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.is_restored = False
        return entry

    # Transactions

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction here that began in `epoch`."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch

    def has_marker_since(self, producer_id: int, offset: int) -> bool:
        """Return whether a transaction of the producer ended at `offset` or later.

        Only knows markers since the log was loaded.
        """
        entry = self.entries.get(producer_id)
        return entry is not None and entry.marker_offset >= offset

    def is_known(self, producer_id: int, epoch: int) -> bool:
        """Return whether the log holds a batch or marker of the producer in `epoch`."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.epoch == epoch

    def check_first_batch(self, header: BatchHeader, offset: int) -> None:
        """Reject a batch that cannot begin a transaction of version 2.

        The sequence restarts at 0 with every transaction. If no batch is known and the sequence is
        not 0, earlier batches are still in flight. Raises INVALID_PRODUCER_EPOCH or
        OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry = self.entries.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            raise _rejection(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                header,
                offset,
                f"is of epoch {header.producer_epoch}, but epoch {entry.epoch} was seen",
            )
        if header.base_sequence > 0 and (entry is None or not entry.batches):
            raise _rejection(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                header,
                offset,
                f"begins a transaction with sequence {header.base_sequence} and not 0",
            )

    def check_marker(self, header: BatchHeader, marker: EndMarker, version: int) -> bool:
        """Return whether a marker must be appended; False if the log already has it.

        From transaction version 2 on, a marker carries the epoch after the transaction's, so a late
        marker cannot end a later transaction. Raises INVALID_PRODUCER_EPOCH or
        TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return True
        epoch = header.producer_epoch
        is_bumped = version >= _BUMPED_SINCE
        if is_bumped and epoch == entry.epoch and entry.transaction_start < 0:
            return False
        if epoch < entry.epoch or (is_bumped and epoch == entry.epoch):
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"marker for producer {header.producer_id} is of epoch {epoch}, but epoch"
                f" {entry.epoch} was seen",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise BrokerError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker for producer {header.producer_id} is of coordinator epoch"
                f" {marker.coordinator_epoch}, but {entry.coordinator_epoch} was seen",
            )
        return True

    def end_transaction(
        self, header: BatchHeader, offset: int, timestamp: int, marker: EndMarker | None
    ) -> AbortedTransaction | None:
        """Record a control batch that was appended at `offset`. Returns the aborted transaction.

        `marker` None: compaction emptied the batch, which still tells the producer's epoch.
        """
        self.is_dirty = True
        entry = self._enter_epoch(header)
        entry.last_timestamp = timestamp
        if marker is None:
            return None
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.marker_offset = offset
        start, entry.transaction_start = entry.transaction_start, -1
        if start < 0:
            return None
        stable = self.transactions.end(start, offset)
        if marker.is_commit:
            return None
        return AbortedTransaction(header.producer_id, start, offset, stable)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were idle for `expiration_ms` and have no open transaction.

        Returns their number.
        """
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
        """Return the state as a snapshot."""
        rows = []
        for entry in self.entries.values():
            last = entry.batches[-1] if entry.batches else None
            rows.append(
                SNAPSHOT_ENTRY.pack(
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
        return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> ProducerState:
        """Return the state that `encode` wrote. Raises ValueError if the snapshot is damaged."""
        if len(data) < SNAPSHOT_HEAD.size:
            raise ValueError(f"a snapshot of {len(data)} bytes is too short")
        version, crc, count = SNAPSHOT_HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"snapshot version {version} is unknown")
        if crc32c(memoryview(data)[SNAPSHOT_CRC_START:]) != crc:
            raise ValueError("the snapshot's CRC is wrong")
        if len(data) != SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size:
            raise ValueError(f"a snapshot of {len(data)} bytes cannot hold {count} entries")
        state = cls()
        starts: dict[int, int] = {}
        for row in SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[SNAPSHOT_HEAD.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator, start = row
            entry = state.entries[producer_id] = ProducerEntry(producer_id, epoch)
            entry.is_restored = True
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator
            entry.transaction_start = start
            if offset >= 0:
                first = (sequence - delta) % SEQUENCE_MODULUS if sequence >= 0 else sequence
                entry.batches.append(
                    ProducedBatch(first, sequence, offset - delta, offset, timestamp)
                )
            if start >= 0:
                starts[start] = producer_id
        state.transactions.restore(starts)
        return state


def _check_start(entry: ProducerEntry, header: BatchHeader, offset: int) -> None:
    """Reject a batch that is not the next one of its epoch, unless it is the first of a new one."""
    epoch, sequence = header.producer_epoch, header.base_sequence
    if epoch != entry.epoch:
        if sequence == 0 or entry.epoch == NO_EPOCH:
            return
        reason = f"starts epoch {epoch} with sequence {sequence} and not 0"
    elif entry.has_forgotten(header):
        # Clients treat this code as a success with an unknown offset.
        raise _rejection(
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            header,
            offset,
            f"repeats sequence {sequence}, which is too long ago to know its offset",
        )
    else:
        reason = f"has sequence {sequence} after {entry.last_sequence}"
    raise _rejection(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, header, offset, reason)


def _rejection(code: ErrorCode, header: BatchHeader, offset: int, reason: str) -> BrokerError:
    return BrokerError(code, f"batch of producer {header.producer_id} for offset {offset} {reason}")
