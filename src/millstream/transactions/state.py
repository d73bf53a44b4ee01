"""The state machine of one transactional id. Pure: takes events and times, returns effects.

    EMPTY            a producer has this id; there is no transaction
    ONGOING          partitions were added to a transaction
    PREPARE_COMMIT   the decision to commit was made; markers are being sent
    PREPARE_ABORT    the decision to abort was made; markers are being sent
    COMPLETE_COMMIT  every partition has its commit marker
    COMPLETE_ABORT   every partition has its abort marker
    DEAD             deleted: a tombstone was written (no record has this state)
    PREPARE_EPOCH_FENCE  exists in Kafka only: here fencing a producer and deciding to abort its
                     transaction are one step

    event                      from                           to
    init_producer              EMPTY, COMPLETE_*              EMPTY            epoch raised
                               ONGOING                        PREPARE_ABORT    producer fenced
    keep_prepared              ONGOING                        ONGOING          producer fenced
    add_partitions             EMPTY, ONGOING, COMPLETE_*     ONGOING
    end                        ONGOING                        PREPARE_*
                               EMPTY, COMPLETE_* (version 2)  PREPARE_ABORT    nothing was added
    expire (timeout)           ONGOING                        PREPARE_ABORT    producer fenced
    marked (last partition)    PREPARE_*                      COMPLETE_*

The decision is final once its record is committed; only then are markers sent. Until every
partition has its marker, all requests get CONCURRENT_TRANSACTIONS.

There are two protocols. In the classic one a producer keeps its epoch until it is initialised
again. In transaction version 2 (KIP-890) every end raises the epoch, and the markers have the
raised epoch. So a late batch cannot become part of the next transaction. No producer gets the last
epoch of a producer id: it is reserved for fencing. When the epochs of a producer id are exhausted,
the transactional id continues with a new producer id.

A transaction can take part in a two-phase commit that an external coordinator decides (KIP-939).
Its timeout is `NO_TIMEOUT_MS`: only its producer, or a new producer of the same id, ends it. A
producer that keeps an open transaction gets a new epoch, with which it can only end the
transaction; the batches in the partitions have the epoch before. So keeping a transaction prepares
it: its writer is fenced, and without a timeout it stays open until it is ended.

A rejected request raises BrokerError before anything changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from millstream.coordination.effects import Effects, ProducerIdAndEpoch, TimerKey
from millstream.coordination.topic_record import DamagedRecordError
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.sentinel import NO_EPOCH, NO_PRODUCER_ID, NO_TIMEOUT_MS, NO_TIMESTAMP
from millstream.model.topic import TopicPartition
from millstream.transactions import transaction_record as record
from millstream.transactions.transaction_record import TransactionLogValue

#: From this transaction version on every end raises the epoch.
BUMPING_VERSION: Final = 2
#: Reserved for fencing; no producer has this epoch.
LAST_EPOCH: Final = 0x7FFF

_TIMEOUT: Final[TimerKey] = ("timeout", "")


class TransactionState(Enum):
    """The states, with their numbers in records and the names that clients see."""

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    DEAD = (6, "Dead")
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")

    def __init__(self, number: int, label: str) -> None:
        self.number = number
        self.label = label


_PREPARED: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_COMPLETED: Final = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_STATE_OF_NUMBER: Final = {state.number: state for state in TransactionState}


class Marker(NamedTuple):
    """The marker that ends a transaction in each of its partitions."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    #: The transaction version of the request that ended the transaction. From `BUMPING_VERSION` on
    #: the marker's epoch is higher than that of the transaction's batches.
    version: int = 0


@dataclass(slots=True)
class TransactionEffects(Effects):
    """Effects with a marker."""

    #: Sent to the transaction's partitions once the records are committed.
    marker: Marker | None = None


class EndRequest(NamedTuple):
    """An EndTxn request."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    #: The client's transaction version.
    version: int


class PreparedTransaction(NamedTuple):
    """The result for a producer that keeps an open transaction."""

    #: The producer that may end it.
    holder: ProducerIdAndEpoch
    #: The producer that wrote it; None if no transaction is open.
    writer: ProducerIdAndEpoch | None


#: The result of InitProducerId.
InitResult: TypeAlias = ProducerIdAndEpoch | PreparedTransaction | ErrorCode


class TransactionMetadata:
    """The state of one transactional id."""

    __slots__ = (
        "client_version",
        "last_epoch",
        "next_producer_epoch",
        "next_producer_id",
        "partitions",
        "previous_producer_id",
        "producer_epoch",
        "producer_id",
        "start_ms",
        "state",
        "timeout_ms",
        "transactional_id",
        "update_ms",
        "version",
    )

    def __init__(self, transactional_id: str, version: int) -> None:
        self.transactional_id = transactional_id
        #: The cluster's transaction version, for records and for events without a client.
        self.version = version
        self.state = TransactionState.EMPTY
        self.producer_id = NO_PRODUCER_ID
        #: The producer id whose epochs were exhausted before; NO_PRODUCER_ID if there was none.
        self.previous_producer_id = NO_PRODUCER_ID
        #: The identity of the producer after a transaction that exhausted the epochs. If an open
        #: transaction was kept: the producer that may end it.
        self.next_producer_id = NO_PRODUCER_ID
        self.next_producer_epoch = NO_EPOCH
        self.producer_epoch = NO_EPOCH
        #: The previous epoch if the producer may retry with it, else NO_EPOCH.
        self.last_epoch = NO_EPOCH
        self.timeout_ms = 0
        #: The partitions of the transaction. While it ends: those without a marker.
        self.partitions: set[TopicPartition] = set()
        self.start_ms = NO_TIMESTAMP
        self.update_ms = NO_TIMESTAMP
        #: The client's transaction version at the last transition.
        self.client_version = 0

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def holder(self) -> ProducerIdAndEpoch | None:
        """The producer that may end a kept transaction instead of the one that wrote it; None if
        the transaction was not kept."""
        if self.state is not TransactionState.ONGOING or self.next_producer_id == NO_PRODUCER_ID:
            return None
        return ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch)

    @property
    def current(self) -> ProducerIdAndEpoch:
        """The producer whose requests are accepted."""
        return self.holder or self.producer

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left for a producer."""
        return self.current.epoch >= LAST_EPOCH - 1

    @property
    def has_timeout(self) -> bool:
        return self.timeout_ms != NO_TIMEOUT_MS

    @property
    def marker(self) -> Marker | None:
        """The marker that is being sent; None if the transaction is not ending."""
        if self.state not in _PREPARED:
            return None
        return Marker(
            self.producer, self.state is TransactionState.PREPARE_COMMIT, self.client_version
        )

    # InitProducerId

    def init_producer(
        self,
        now_ms: int,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        new_producer_id: int | None,
        reply: Reply[InitResult],
    ) -> TransactionEffects:
        """Assign a producer its id and epoch, which fences all earlier producers. The reply gets
        both, or CONCURRENT_TRANSACTIONS if an open transaction must be aborted first.

        `expected` is the identity of a producer that continues after an error (KIP-360).
        `new_producer_id` is used if there is no producer id yet or its epochs are exhausted."""
        self._check_not_ending()
        if expected is not None and not self._is_plausible(expected):
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        effects = TransactionEffects()
        if self.state is TransactionState.ONGOING:
            if expected not in (None, self.current):
                # Kafka aborts the transaction before it rejects the request. So a zombie could
                # abort the transaction of its successor.
                raise BrokerError(ErrorCode.PRODUCER_FENCED)
            self._fence(now_ms, effects)
            effects.deliver(reply, ErrorCode.CONCURRENT_TRANSACTIONS)
            return effects
        self._raise_epoch(expected, new_producer_id)
        self.state = TransactionState.EMPTY
        self.timeout_ms = timeout_ms
        self.start_ms = NO_TIMESTAMP
        self.client_version = 0
        self._write(now_ms, effects)
        effects.deliver(reply, self.producer)
        return effects

    def keep_prepared(
        self,
        now_ms: int,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        new_producer_id: int | None,
        reply: Reply[InitResult],
    ) -> TransactionEffects:
        """Initialise a producer, but keep an open transaction, which can then only be ended. The
        reply gets a `PreparedTransaction`. `expected` may also be the writer, if the response to
        an earlier request was lost."""
        if self.state is not TransactionState.ONGOING:
            effects = self.init_producer(now_ms, timeout_ms, expected, new_producer_id, reply)
            effects.replies = [(reply, PreparedTransaction(self.producer, None))]
            return effects
        effects = TransactionEffects()
        if self.holder is None or expected != self.producer:
            if expected not in (None, self.current):
                raise BrokerError(ErrorCode.PRODUCER_FENCED)
            self._raise_holder_epoch(new_producer_id)
            self.timeout_ms = timeout_ms
            self._write(now_ms, effects)
            self._set_timer(effects)
        effects.deliver(reply, PreparedTransaction(self.current, self.producer))
        return effects

    def _raise_holder_epoch(self, new_producer_id: int | None) -> None:
        if not self.is_exhausted:
            producer_id, epoch = self.current
            self.next_producer_id, self.next_producer_epoch = producer_id, epoch + 1
        elif new_producer_id is None:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        else:
            self.next_producer_id, self.next_producer_epoch = new_producer_id, 0

    def _set_timer(self, effects: TransactionEffects, least_ms: int = 0) -> None:
        if self.has_timeout:
            effects.set_timer(_TIMEOUT, max(self.start_ms + self.timeout_ms, least_ms))
        else:
            effects.cancel_timer(_TIMEOUT)

    def needs_producer_id(self, epoch: int | None = None) -> bool:
        """Whether a request from `epoch` that raises the epoch needs a new producer id."""
        if self.producer_id == NO_PRODUCER_ID:
            return True
        return self.is_exhausted and epoch in (None, self.current.epoch)

    def _is_plausible(self, expected: ProducerIdAndEpoch) -> bool:
        """Whether `expected` has the current producer id, or the previous one if the response with
        the current one was lost."""
        return (
            self.producer_epoch == NO_EPOCH
            or expected.producer_id == self.producer_id
            or (
                expected.producer_id == self.previous_producer_id
                and expected.epoch >= LAST_EPOCH - 1
            )
        )

    def _raise_epoch(
        self, expected: ProducerIdAndEpoch | None, new_producer_id: int | None
    ) -> None:
        expected_epoch = None if expected is None else expected.epoch
        if self.needs_producer_id(expected_epoch):
            if new_producer_id is None:
                raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
            self.previous_producer_id = self.producer_id
            self.last_epoch = NO_EPOCH if expected is None else self.producer_epoch
            self.producer_id, self.producer_epoch = new_producer_id, 0
        elif expected_epoch is None:
            self.last_epoch = NO_EPOCH
            self.producer_epoch += 1
        elif expected_epoch == self.producer_epoch:
            self.last_epoch = self.producer_epoch
            self.producer_epoch += 1
        elif expected_epoch != self.last_epoch or self.last_epoch == NO_EPOCH:
            raise BrokerError(ErrorCode.PRODUCER_FENCED)
        # Otherwise this is a retry, which gets the current epoch again.

    # AddPartitionsToTxn, AddOffsetsToTxn

    def add_partitions(
        self,
        now_ms: int,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        version: int,
        reply: Reply[None],
    ) -> TransactionEffects:
        """Begin a transaction, or add partitions to it; the reply gets None. `version` is the
        client's transaction version."""
        self._check_not_ending()
        self._check_producer(producer)
        if self.holder is not None:
            raise BrokerError(ErrorCode.INVALID_TXN_STATE)
        effects = TransactionEffects()
        added = set(partitions) - self.partitions
        if self.state is not TransactionState.ONGOING:
            self.state = TransactionState.ONGOING
            self.start_ms = now_ms
            self._set_timer(effects)
        elif not added:
            effects.deliver(reply, None)
            return effects
        self.partitions |= added
        self.client_version = version
        self._write(now_ms, effects)
        effects.deliver(reply, None)
        return effects

    def check_partitions(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Check whether partitions are part of the producer's transaction; return an error code
        for each."""
        self._check_producer(producer)
        self._check_not_ending()
        return {
            each: ErrorCode.NONE if each in self.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        }

    # EndTxn

    def end(
        self,
        now_ms: int,
        end: EndRequest,
        new_producer_id: int | None,
        reply: Reply[ProducerIdAndEpoch],
    ) -> TransactionEffects:
        """Commit or abort; the reply gets the id and epoch of the producer after the transaction.

        `new_producer_id` is used if the epochs are exhausted."""
        self._check_not_ending()
        if end.version >= BUMPING_VERSION:
            return self._end_and_raise_epoch(now_ms, end, new_producer_id, reply)
        self._check_producer(end.producer)
        effects = TransactionEffects()
        next_producer = self.current
        if self.state is TransactionState.ONGOING:
            self._make_holder_producer()
            self._prepare(now_ms, end.is_commit, end.version, effects)
        elif self.state is not (
            TransactionState.COMPLETE_COMMIT if end.is_commit else TransactionState.COMPLETE_ABORT
        ):
            raise BrokerError(ErrorCode.INVALID_TXN_STATE)
        effects.deliver(reply, next_producer)
        return effects

    def _end_and_raise_epoch(
        self,
        now_ms: int,
        end: EndRequest,
        new_producer_id: int | None,
        reply: Reply[ProducerIdAndEpoch],
    ) -> TransactionEffects:
        effects = TransactionEffects()
        if self._is_repeated(end):
            self._check_repeated(end)
            effects.deliver(reply, self.producer)
            return effects
        self._check_producer(end.producer)
        if self.state is not TransactionState.ONGOING and end.is_commit:
            raise BrokerError(ErrorCode.INVALID_TXN_STATE)
        is_exhausted = self.is_exhausted
        if is_exhausted and new_producer_id is None:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.state is not TransactionState.ONGOING:
            # The abort of a transaction without partitions only raises the epoch.
            self.start_ms = now_ms
        self._make_holder_producer()
        self.last_epoch = self.producer_epoch
        self._raise_ending_epoch()
        if is_exhausted and new_producer_id is not None:
            self.next_producer_id, self.next_producer_epoch = new_producer_id, 0
        self._prepare(now_ms, end.is_commit, end.version, effects)
        next_producer = self.producer
        if self.next_producer_id != NO_PRODUCER_ID:
            next_producer = ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch)
        effects.deliver(reply, next_producer)
        return effects

    def _make_holder_producer(self) -> None:
        """Before the end: make the holder the producer of the transaction. A holder with another
        producer id becomes the producer once the transaction has ended."""
        holder = self.holder
        if holder is None:
            return
        if holder.producer_id == self.producer_id:
            self.producer_epoch = holder.epoch
            self.next_producer_id, self.next_producer_epoch = NO_PRODUCER_ID, NO_EPOCH
        else:
            self.producer_epoch = LAST_EPOCH

    def _raise_ending_epoch(self) -> None:
        if self.next_producer_id == NO_PRODUCER_ID:
            self.producer_epoch += 1
        else:
            self.next_producer_epoch += 1

    def _is_repeated(self, end: EndRequest) -> bool:
        """Whether the request ends a transaction that has ended: the response was lost."""
        if self.state not in _COMPLETED or self.client_version < BUMPING_VERSION:
            return False
        producer_id, epoch = end.producer
        if producer_id == self.producer_id:
            return self.producer_epoch == epoch + 1
        is_before = producer_id == self.previous_producer_id and epoch == LAST_EPOCH - 1
        return is_before and self.producer_epoch == 0

    def _check_repeated(self, end: EndRequest) -> None:
        if end.is_commit != (self.state is TransactionState.COMPLETE_COMMIT):
            raise BrokerError(ErrorCode.INVALID_TXN_STATE)
        if self.producer_epoch == LAST_EPOCH:
            # The producer was fenced in its last epoch. It needs a new producer id.
            raise BrokerError(ErrorCode.PRODUCER_FENCED)

    # Ending

    def expire(self, now_ms: int, key: TimerKey) -> TransactionEffects:
        """Abort a transaction that timed out, and fence its producer."""
        effects = TransactionEffects()
        if key == _TIMEOUT and self.state is TransactionState.ONGOING:
            self._fence(now_ms, effects)
        return effects

    def _fence(self, now_ms: int, effects: TransactionEffects) -> None:
        self._make_holder_producer()
        self._raise_ending_epoch()
        self.last_epoch = NO_EPOCH
        self._prepare(now_ms, is_commit=False, version=self.version, effects=effects)

    def _prepare(
        self, now_ms: int, is_commit: bool, version: int, effects: TransactionEffects
    ) -> None:
        self.state = (
            TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
        )
        self.client_version = version
        self._write(now_ms, effects)
        effects.cancel_timer(_TIMEOUT)
        effects.marker = self.marker

    def marked(self, now_ms: int, partition: TopicPartition | None) -> TransactionEffects:
        """Remove a partition that has its marker or was deleted; None if there are no partitions.
        The last partition completes the transaction."""
        assert self.state in _PREPARED
        if partition is not None:
            self.partitions.discard(partition)
        effects = TransactionEffects()
        if self.partitions:
            return effects
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        self.state = (
            TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        )
        if self.next_producer_id != NO_PRODUCER_ID:
            self.previous_producer_id = self.producer_id
            self.producer_id = self.next_producer_id
            # Kafka leaves the field unset if the epoch is 0.
            self.producer_epoch = max(self.next_producer_epoch, 0)
            self.next_producer_id, self.next_producer_epoch = NO_PRODUCER_ID, NO_EPOCH
        self._write(now_ms, effects)
        return effects

    # Lifetime

    def loaded(self, now_ms: int) -> TransactionEffects:
        """Resume after all records were replayed: set the timer, or send the marker."""
        effects = TransactionEffects()
        if self.state is TransactionState.ONGOING:
            self._set_timer(effects, now_ms)
        effects.marker = self.marker
        return effects

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id was unused for `expiration_ms`."""
        is_idle = self.state is TransactionState.EMPTY or self.state in _COMPLETED
        return is_idle and self.update_ms <= now_ms - expiration_ms

    def delete(self) -> TransactionEffects:
        """Delete the id; the effects hold its tombstone."""
        self.state = TransactionState.DEAD
        return TransactionEffects(records=[record.encode(self.transactional_id, None)])

    def restore(self, value: TransactionLogValue) -> None:
        """Apply a record of the log. Raises DamagedRecordError."""
        state = _STATE_OF_NUMBER.get(value.transaction_status)
        if state is None or state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
            raise DamagedRecordError(f"there is no state {value.transaction_status}")
        self.state = state
        self.producer_id = value.producer_id
        self.previous_producer_id = value.previous_producer_id
        self.next_producer_id = value.next_producer_id
        self.next_producer_epoch = value.next_producer_epoch
        self.producer_epoch = value.producer_epoch
        self.last_epoch = NO_EPOCH
        self.timeout_ms = value.transaction_timeout_ms
        self.partitions = {
            TopicPartition(topic.topic, number)
            for topic in value.transaction_partitions or ()
            for number in topic.partition_ids
        }
        self.start_ms = value.transaction_start_timestamp_ms
        self.update_ms = value.transaction_last_update_timestamp_ms
        self.client_version = value.client_transaction_version

    # Checks and records

    def _check_not_ending(self) -> None:
        # This check comes first, because the producer may change when the transaction has ended.
        if self.state in _PREPARED:
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _check_producer(self, producer: ProducerIdAndEpoch) -> None:
        current = self.current
        if producer.producer_id != current.producer_id:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != current.epoch:
            raise BrokerError(ErrorCode.PRODUCER_FENCED)

    def _write(self, now_ms: int, effects: TransactionEffects) -> None:
        self.update_ms = now_ms
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(self.partitions):
            topics.setdefault(topic, []).append(number)
        value = TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            next_producer_epoch=self.next_producer_epoch,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state.number,
            transaction_partitions=None
            if self.state is TransactionState.EMPTY
            else [
                TransactionLogValue.Partitions(topic=topic, partition_ids=numbers)
                for topic, numbers in topics.items()
            ],
            transaction_last_update_timestamp_ms=now_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=self.client_version,
        )
        is_tagged = self.version >= 1 or self.client_version >= BUMPING_VERSION
        key, encoded = record.encode(self.transactional_id, value, 1 if is_tagged else 0)
        effects.append(key, encoded)
