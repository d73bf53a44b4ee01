"""Producers with a rejected batch: their later batches are rejected until it is retried. Pure.

A client has several batches in flight. If the first one is rejected and a later one is appended,
the retry of the first looks like a duplicate or a gap. So each partition remembers, for each
producer, the lowest rejected sequence that the client is expected to retry. Later batches of the
same producer epoch are rejected until that batch is appended. Kafka keeps the same in a producer's
verification state.

A later batch gets the error code of the rejected one if clients retry after that code. Kafka sends
a sequence error instead. After it librdkafka raises its epoch and sends batches again that other
partitions may already have: duplicates. If a client never retries the rejected batch, it gets the
sequence error after as many batches as it may have had in flight.

A producer is forgotten when its rejected batch is appended or rejected for good, when it has a new
epoch, and when a marker ends its transaction. In a new leader epoch another leader may have
appended the rejected batch, so the log decides. If the log knows the producer, batches that are out
of sequence still get the code of the rejected batch. If the log does not know the producer, nobody
has appended the rejected batch, and later batches wait for it: a log accepts any first sequence.
"""

from __future__ import annotations

from typing import Final

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import SEQUENCE_MODULUS
from millstream.records.batch import BatchHeader

#: Largest number of batches that one idempotent producer may have in flight.
_IN_FLIGHT_MAX: Final = 5
_PRODUCERS_MAX: Final = 1000
#: Codes after which a client retries the same batch.
_RETRIED: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class _Rejected:
    """The rejected batch that must be appended before later ones."""

    __slots__ = ("code", "epoch", "is_awaited", "retries_left", "sequence")

    def __init__(self, epoch: int, sequence: int, code: ErrorCode) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.code = code
        #: Whether later batches wait for it: no other leader can have appended it.
        self.is_awaited = True
        #: How many later batches still get `code`.
        self.retries_left = _IN_FLIGHT_MAX - 1 if code in _RETRIED else 0


class RejectedProducers:
    """The producers of one partition that have a rejected batch."""

    __slots__ = ("_rejected",)

    def __init__(self) -> None:
        #: By producer id.
        self._rejected: dict[int, _Rejected] = {}

    def __len__(self) -> int:
        return len(self._rejected)

    def check(self, header: BatchHeader, *, is_known: bool) -> None:
        """Raise if a batch must wait for an earlier batch that was rejected.

        `is_known`: the log has a batch of the producer in this epoch, so it detects a gap."""
        found = self._rejected.get(header.producer_id)
        if found is None or header.base_sequence < 0:
            return
        if header.producer_epoch > found.epoch:
            del self._rejected[header.producer_id]
        elif (
            (found.is_awaited or not is_known)
            and header.producer_epoch == found.epoch
            and _is_after(header, found)
        ):
            raise BrokerError(
                self._next_code(found),
                f"batch of producer {header.producer_id} with sequence {header.base_sequence} must"
                f" wait for sequence {found.sequence}, which was rejected",
            )

    def client_error(self, header: BatchHeader, error: BrokerError) -> BrokerError:
        """Return the error that the client gets for a batch that the log has rejected."""
        found = self._rejected.get(header.producer_id)
        is_gap = error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if found is None or not is_gap or header.producer_epoch != found.epoch:
            return error
        return BrokerError(self._next_code(found), error.message)

    def _next_code(self, found: _Rejected) -> ErrorCode:
        """Return the code for the next batch behind a rejected one."""
        if not found.retries_left:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        found.retries_left -= 1
        return found.code

    def begin_epoch(self) -> None:
        """Apply a new leader epoch of the partition."""
        for rejected in self._rejected.values():
            rejected.is_awaited = False

    def reject(self, header: BatchHeader, code: ErrorCode, *, by_coordinator: bool = False) -> None:
        """Record a rejected batch.

        `by_coordinator`: the transaction coordinator did not admit it. Later batches are then
        rejected too, even if the client is not expected to retry this one.
        """
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        found = self._rejected.get(header.producer_id)
        if found is not None and found.epoch > header.producer_epoch:
            return
        if (
            found is not None
            and found.is_awaited
            and found.epoch == header.producer_epoch
            and _is_after(header, found)
        ):
            return
        if code in _RETRIED or by_coordinator:
            self._rejected.pop(header.producer_id, None)
            if len(self._rejected) >= _PRODUCERS_MAX:
                del self._rejected[next(iter(self._rejected))]
            self._rejected[header.producer_id] = _Rejected(
                header.producer_epoch, header.base_sequence, code
            )
        else:
            self._forget_reached(header)

    def appended(self, header: BatchHeader) -> None:
        """Record a batch that is in the log."""
        self._forget_reached(header)

    def _forget_reached(self, header: BatchHeader) -> None:
        found = self._rejected.get(header.producer_id)
        if found is None or header.producer_epoch < found.epoch:
            return
        # A duplicate of an earlier batch changes nothing.
        if header.producer_epoch > found.epoch or _reaches(header, found):
            del self._rejected[header.producer_id]

    def ended(self, producer_id: int) -> None:
        """Forget a producer whose transaction has ended: its client retries nothing of it."""
        self._rejected.pop(producer_id, None)


def _reaches(header: BatchHeader, rejected: _Rejected) -> bool:
    """Whether a batch has the first record of the rejected batch, or a later one."""
    ahead = (header.last_sequence - rejected.sequence) % SEQUENCE_MODULUS
    return ahead < SEQUENCE_MODULUS // 2


def _is_after(header: BatchHeader, rejected: _Rejected) -> bool:
    """Whether a batch has a higher sequence than the rejected batch. Sequences wrap."""
    ahead = (header.base_sequence - rejected.sequence) % SEQUENCE_MODULUS
    return 0 < ahead < SEQUENCE_MODULUS // 2
