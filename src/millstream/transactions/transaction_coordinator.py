"""The transaction coordinator of this broker: finds the transactional id that a request is for, and
lets it act.

Requests come with a `Reply`, which gets the result at once or later. Whoever asks for an id
that lives elsewhere gets NOT_COORDINATOR, and COORDINATOR_LOAD_IN_PROGRESS while its partition is
being loaded.

Where ids are kept, loaded and timed is `shards`'. Does not create the topic; the broker does, when
a client first looks for a coordinator. Does not make producer ids either: whoever asks for
something that may take one brings it along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream.coordination.effects import Effects, ProducerIdAndEpoch
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.topic import TopicPartition
from millstream.transactions.end_wait import EndWait
from millstream.transactions.state import NO_TIMEOUT_MS, EndRequest, InitResult, Transaction
from millstream.transactions.transaction_shard import TransactionShard
from millstream.transactions.transaction_shards import TransactionShards


class InitProducerOptions(NamedTuple):
    """On which a producer is initialised."""

    timeout_ms: int
    #: No timeout: the transaction takes part in a two-phase commit.
    is_two_phase: bool = False
    #: An open transaction is kept to be ended, not aborted.
    keep_prepared: bool = False


class TransactionCoordinator:
    """See the module's text. Event loop only."""

    __slots__ = ("shards",)

    def __init__(self, shards: TransactionShards) -> None:
        self.shards = shards

    # Producers

    def init_needs_producer_id(self, transactional_id: str, epoch: int | None) -> bool:
        """Whether to bring a new producer id to an initialisation: there is none yet, or no epoch
        left after the one that the producer says to have. Raises as `TransactionShards.of` does."""
        transaction = self.shards.of(transactional_id).transactions.get(transactional_id)
        return transaction is None or transaction.needs_producer_id(epoch)

    def end_needs_producer_id(self, transactional_id: str, epoch: int) -> bool:
        """The same for the end of a transaction that raises the epoch."""
        transaction = self.shards.of(transactional_id).transactions.get(transactional_id)
        return transaction is not None and transaction.needs_producer_id(epoch)

    def init_producer(
        self,
        transactional_id: str,
        terms: InitProducerOptions,
        expected: ProducerIdAndEpoch | None,
        new_producer_id: int | None,
        reply: Reply[InitResult],
    ) -> None:
        """InitProducerId; the reply gets the producer, or `Kept`, or a code."""
        now_ms = self.shards.now_ms
        try:
            _check_id(transactional_id)
            timeout_ms = self._timeout_ms(terms)
            shard = self.shards.of(transactional_id)
            transaction = shard.transactions.get(transactional_id) or shard.new(transactional_id)
            init = transaction.keep_prepared if terms.keep_prepared else transaction.init_producer
            effects = init(now_ms, timeout_ms, expected, new_producer_id, reply)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.transactions[transactional_id] = transaction
        shard.carry_out_transaction(transaction, effects)

    def _timeout_ms(self, terms: InitProducerOptions) -> int:
        options = self.shards.options
        if terms.is_two_phase:
            if not options.is_two_phase_allowed:
                # What Kafka says as well: whether it is allowed is not for everybody to know.
                raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return NO_TIMEOUT_MS
        if not 0 < terms.timeout_ms <= options.timeout_ms_max:
            raise BrokerError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return terms.timeout_ms

    # Partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[None],
    ) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn; the reply gets None. `version` is the transaction
        version that the client speaks."""
        now_ms = self.shards.now_ms
        try:
            shard, transaction = self._find(transactional_id)
            effects = transaction.add_partitions(now_ms, producer, partitions, version, reply)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.carry_out_transaction(transaction, effects)

    def add_partitions_after_end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[None],
        wait_s: float,
    ) -> None:
        """Like `add_partitions`, but wait up to `wait_s` for a transaction that is ending."""

        def add() -> None:
            self.add_partitions(transactional_id, producer, partitions, version, reply)
            self.flush(transactional_id)

        EndWait(self, wait_s).add(transactional_id, reply, add)

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        reply: Reply[dict[TopicPartition, ErrorCode]],
    ) -> None:
        """AddPartitionsToTxn that only asks; the reply gets a code for each partition."""
        try:
            shard, transaction = self._find(transactional_id)
            codes = transaction.check_partitions(producer, partitions)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.carry_out(transactional_id, Effects(replies=[(reply, codes)]))

    def flush(self, transactional_id: str) -> None:
        """Write now what was asked for, instead of at the end of this turn of the loop: whoever
        can go on then does so without a detour."""
        try:
            shard = self.shards.of(transactional_id)
        except BrokerError:
            # Whoever asked has been told so.
            return
        shard.journal.flush()

    # The end

    def end(
        self,
        transactional_id: str,
        end: EndRequest,
        new_producer_id: int | None,
        reply: Reply[ProducerIdAndEpoch],
    ) -> None:
        """EndTxn; the reply gets the producer's id and epoch from here on."""
        now_ms = self.shards.now_ms
        try:
            shard, transaction = self._find(transactional_id)
            effects = transaction.end(now_ms, end, new_producer_id, reply)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.carry_out_transaction(transaction, effects)

    def is_ending(self, transactional_id: str) -> bool:
        """Whether the id has a transaction that is decided, and some partitions have no marker."""
        try:
            _, transaction = self._find(transactional_id)
        except BrokerError:
            return False
        return transaction.marker is not None

    def when_ended(self, transactional_id: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the transaction that is ending has ended, or when the id moves to
        another broker. Return a function that cancels this."""
        return self.shards.of(transactional_id).when_ended(transactional_id, callback)

    # Administration

    def describe(self, transactional_id: str) -> Transaction:
        """TRANSACTIONAL_ID_NOT_FOUND if there is none."""
        _check_id(transactional_id)
        transaction = self.shards.of(transactional_id).transactions.get(transactional_id)
        if transaction is None:
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction

    def _find(self, transactional_id: str) -> tuple[TransactionShard, Transaction]:
        _check_id(transactional_id)
        shard = self.shards.of(transactional_id)
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return shard, transaction


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
