"""Producers whose batch was rejected, and what their later batches are told. Pure.

A client has several batches in flight. If the first one is rejected and a later one appended, the
first can never be appended again in its place: its retry would pass for a duplicate, or for a gap.
So each partition remembers the lowest sequence of a producer that was rejected and that the client
is expected to retry. Later batches of the same epoch are rejected until that one was appended.
Kafka keeps the same in the verification state of a producer.

A later batch gets the error code of the first one, if a client retries after that code. The
sequence error that Kafka sends makes librdkafka begin a new epoch and send again, under it, what
may have been stored in other partitions: duplicates. A client that never retries the first batch
gets the sequence error, after as many batches as it may have had in flight.

A producer is forgotten when the first batch was appended or rejected for good, when it has a new
epoch, and when a marker ends its transaction. In a new leader epoch another leader may have
appended the first one, so the log decides. If it knows the producer, batches that were in flight
behind the first and are out of sequence get the code of the first batch too. If it does not, nobody
has appended the first one, and later batches wait for it as before: a log takes any sequence from
a producer that it does not know.
"""

from __future__ import annotations

from typing import Final

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import SEQUENCE_MODULUS
from millstream.records.batch import BatchHeader

#: Batches of one idempotent producer that may be in flight at a time.
_IN_FLIGHT_MAX: Final = 5
_PRODUCERS_MAX: Final = 1000
#: After these a client sends the same batch again.
_RETRIED: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class _Rejected:
    """The batch that has to come first."""

    __slots__ = ("code", "epoch", "is_awaited", "retries_left", "sequence")

    def __init__(self, epoch: int, sequence: int, code: ErrorCode) -> None:
        self.epoch = epoch
        self.sequence = sequence
        self.code = code
        #: Whether later batches have to wait for it: it can't have been appended elsewhere.
        self.is_awaited = True
        #: How many later batches are told `code`.
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
        """Raise if a batch must not be appended before an earlier one that was rejected.

        `is_known`: the log has something of the producer in this epoch, and can see a gap."""
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
                f"batch of producer {header.producer_id} with sequence {header.base_sequence} has"
                f" to wait for sequence {found.sequence}, which was rejected",
            )

    def told(self, header: BatchHeader, error: BrokerError) -> BrokerError:
        """Return what to tell the client of a batch that the log has not taken."""
        found = self._rejected.get(header.producer_id)
        is_gap = error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if found is None or not is_gap or header.producer_epoch != found.epoch:
            return error
        return BrokerError(self._next_code(found), error.message)

    def _next_code(self, found: _Rejected) -> ErrorCode:
        """Return what the next batch behind a rejected one is told."""
        if not found.retries_left:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        found.retries_left -= 1
        return found.code

    def begin_epoch(self) -> None:
        """Take note that the partition has another leader epoch."""
        for rejected in self._rejected.values():
            rejected.is_awaited = False

    def reject(self, header: BatchHeader, code: ErrorCode, *, by_coordinator: bool = False) -> None:
        """Take note of a batch that was not appended.

        `by_coordinator`: the transaction's coordinator did not admit it. Then no later batch is
        appended either, even if the client is not expected to retry this one.
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
        """Take note of a batch that was appended, or found to be there already."""
        self._forget_reached(header)

    def _forget_reached(self, header: BatchHeader) -> None:
        found = self._rejected.get(header.producer_id)
        if found is None or header.producer_epoch < found.epoch:
            return
        # The duplicate of an even earlier batch changes nothing.
        if header.producer_epoch > found.epoch or _reaches(header, found):
            del self._rejected[header.producer_id]

    def ended(self, producer_id: int) -> None:
        """Take note of a marker: the client retries nothing of the transaction that it ends."""
        self._rejected.pop(producer_id, None)


def _reaches(header: BatchHeader, rejected: _Rejected) -> bool:
    """Whether a batch contains the rejected one's first record, or comes after it."""
    ahead = (header.last_sequence - rejected.sequence) % SEQUENCE_MODULUS
    return ahead < SEQUENCE_MODULUS // 2


def _is_after(header: BatchHeader, rejected: _Rejected) -> bool:
    """Whether a batch has a higher sequence than the rejected one; sequences wrap around."""
    ahead = (header.base_sequence - rejected.sequence) % SEQUENCE_MODULUS
    return 0 < ahead < SEQUENCE_MODULUS // 2
