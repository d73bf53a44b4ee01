"""The transaction coordinator of this broker: routes each request to its transactional id.

Requests come with a `Reply`, which gets the result at once or later. A request for an id whose
partition another broker leads gets NOT_COORDINATOR, and COORDINATOR_LOAD_IN_PROGRESS while the
partition is being loaded.

`transaction_shards` stores, loads and times the ids. The broker creates the topic, when a client
first looks for a coordinator. The caller allocates producer ids and passes them in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream.coordination.effects import Effects, ProducerIdAndEpoch
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply
from millstream.model.sentinel import NO_TIMEOUT_MS
from millstream.model.topic import TopicPartition
from millstream.transactions.end_wait import EndWait
from millstream.transactions.state import EndRequest, InitResult, TransactionMetadata
from millstream.transactions.transaction_shard import TransactionShard
from millstream.transactions.transaction_shards import TransactionShards


class InitProducerOptions(NamedTuple):
    """The options of an InitProducerId request."""

    timeout_ms: int
    #: The transaction takes part in a two-phase commit and has no timeout.
    is_two_phase: bool = False
    #: An open transaction is kept until the producer ends it, and not aborted.
    keep_prepared: bool = False


class TransactionCoordinator:
    """Routes requests to the transactional ids of this broker. Event loop only."""

    __slots__ = ("shards",)

    def __init__(self, shards: TransactionShards) -> None:
        self.shards = shards

    # Producers

    def init_needs_producer_id(self, transactional_id: str, epoch: int | None) -> bool:
        """Whether `init_producer` needs a new producer id: there is none yet, or its epochs are
        exhausted. Raises as `TransactionShards.of` does."""
        transaction = self.shards.of(transactional_id).transactions.get(transactional_id)
        return transaction is None or transaction.needs_producer_id(epoch)

    def end_needs_producer_id(self, transactional_id: str, epoch: int) -> bool:
        """Whether `end` needs a new producer id, because it raises the epoch and the epochs are
        exhausted."""
        transaction = self.shards.of(transactional_id).transactions.get(transactional_id)
        return transaction is not None and transaction.needs_producer_id(epoch)

    def init_producer(
        self,
        transactional_id: str,
        options: InitProducerOptions,
        expected: ProducerIdAndEpoch | None,
        new_producer_id: int | None,
        reply: Reply[InitResult],
    ) -> None:
        """Handle InitProducerId; the reply gets a producer, a prepared transaction or a code."""
        now_ms = self.shards.now_ms
        try:
            _check_id(transactional_id)
            timeout_ms = self._timeout_ms(options)
            shard = self.shards.of(transactional_id)
            transaction = shard.transactions.get(transactional_id) or shard.new(transactional_id)
            init = transaction.keep_prepared if options.keep_prepared else transaction.init_producer
            effects = init(now_ms, timeout_ms, expected, new_producer_id, reply)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.transactions[transactional_id] = transaction
        shard.carry_out_transaction(transaction, effects)

    def _timeout_ms(self, options: InitProducerOptions) -> int:
        limits = self.shards.options
        if options.is_two_phase:
            if not limits.is_two_phase_allowed:
                # Kafka returns the same code, which does not disclose whether it is allowed.
                raise BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return NO_TIMEOUT_MS
        if not 0 < options.timeout_ms <= limits.timeout_ms_max:
            raise BrokerError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return options.timeout_ms

    # Partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        version: int,
        reply: Reply[None],
    ) -> None:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn; the reply gets None. `version` is the
        client's transaction version."""
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
        """Add partitions after waiting up to `wait_s` for a transaction that is ending."""

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
        """Handle AddPartitionsToTxn with VerifyOnly; the reply gets an error code per
        partition."""
        try:
            shard, transaction = self._find(transactional_id)
            codes = transaction.check_partitions(producer, partitions)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.carry_out(transactional_id, Effects(replies=[(reply, codes)]))

    def flush(self, transactional_id: str) -> None:
        """Append pending records now instead of at the end of this loop iteration, so that a reply
        that is due can be delivered at once."""
        try:
            shard = self.shards.of(transactional_id)
        except BrokerError:
            # The request that caused the records has failed with this error already.
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
        """Handle EndTxn; the reply gets the producer's id and epoch after the transaction."""
        now_ms = self.shards.now_ms
        try:
            shard, transaction = self._find(transactional_id)
            effects = transaction.end(now_ms, end, new_producer_id, reply)
        except BrokerError as error:
            reply.fail(error.code)
            return
        shard.carry_out_transaction(transaction, effects)

    def is_ending(self, transactional_id: str) -> bool:
        """Whether the transaction's end is decided and some partitions have no marker yet."""
        try:
            _, transaction = self._find(transactional_id)
        except BrokerError:
            return False
        return transaction.marker is not None

    def when_ended(self, transactional_id: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once the transaction has ended or the id moves to another broker. Return
        a function that cancels this."""
        return self.shards.of(transactional_id).when_ended(transactional_id, callback)

    # Administration

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return the transaction; raise TRANSACTIONAL_ID_NOT_FOUND if it does not exist."""
        _check_id(transactional_id)
        transaction = self.shards.of(transactional_id).transactions.get(transactional_id)
        if transaction is None:
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction

    def _find(self, transactional_id: str) -> tuple[TransactionShard, TransactionMetadata]:
        _check_id(transactional_id)
        shard = self.shards.of(transactional_id)
        transaction = shard.transactions.get(transactional_id)
        if transaction is None:
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return shard, transaction


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
