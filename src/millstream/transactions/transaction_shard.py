"""The transactional ids of one partition of `__transaction_state`, while this broker leads it.

Owns the transactions and the marker rounds in progress. The leader epoch of the partition is the
coordinator epoch in the markers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from millstream.coordination.effects import Effects, TimerKey
from millstream.coordination.shard import (
    CoordinatorShard,
    LedPartition,
    SetTimer,
    ShardReplay,
    ShardState,
)
from millstream.coordination.topic_record import DamagedRecordError
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.records.record import Record
from millstream.transactions import transaction_record as record
from millstream.transactions.marker_sender import MarkerRound, MarkerSender
from millstream.transactions.state import (
    Marker,
    TransactionEffects,
    TransactionMetadata,
    TransactionState,
)

_logger = logging.getLogger(__name__)

#: Delay before a decision whose commit timed out waits for its commit again.
_RETRY_S: Final = 0.1


@dataclass(slots=True)
class TransactionStats:
    """Totals of the transactions that this broker coordinated."""

    committed: int = 0
    aborted: int = 0


@dataclass(slots=True)
class TransactionShardContext:
    """The state that all transaction shards of a broker share."""

    sender: MarkerSender
    #: The cluster's transaction version; `TransactionShards.set_version` changes it.
    version: int
    now_ms: Callable[[], int]
    failures: CallbackFailures
    stats: TransactionStats = field(default_factory=TransactionStats)


class TransactionShard(CoordinatorShard):
    """The transactions of one partition."""

    __slots__ = ("_context", "_markings", "_waiting", "transactions")

    def __init__(
        self, led: LedPartition, set_timer: SetTimer, context: TransactionShardContext
    ) -> None:
        super().__init__(led, set_timer)
        self._context = context
        self.transactions: dict[str, TransactionMetadata] = {}
        #: Marker rounds in progress, by transactional id.
        self._markings: dict[str, MarkerRound] = {}
        #: Callbacks that wait for the end of a transaction, by transactional id.
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}

    def replay(self) -> ShardReplay:
        return TransactionReplay(self)

    def new(self, transactional_id: str) -> TransactionMetadata:
        return TransactionMetadata(transactional_id, self._context.version)

    # Lifetime

    def open(self, now_ms: int) -> None:
        super().open(now_ms)
        for transaction in list(self.transactions.values()):
            self.carry_out_transaction(transaction, transaction.loaded(now_ms))

    def close(self, code: ErrorCode) -> None:
        for marking in self._markings.values():
            marking.close()
        self._markings.clear()
        super().close(code)
        for transactional_id in list(self._waiting):
            self._notify_waiting(transactional_id)

    # Effects

    def carry_out_transaction(
        self, transaction: TransactionMetadata, effects: TransactionEffects
    ) -> None:
        """Carry out the effects of a transaction, including its marker."""
        if effects.marker is not None:
            effects.deliver(self._decision(transaction), effects.marker)
        self.carry_out(transaction.transactional_id, effects)

    def _decision(self, transaction: TransactionMetadata) -> Reply[Marker]:
        """Return a reply that sends the marker once the decision is committed."""

        def retry_later(_: ErrorCode) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(_RETRY_S, self._await_decision, transaction)

        return Reply(
            ReplyKind.TRANSACTION_DECISION,
            self._context.failures,
            retry_later,
            lambda marker: self._send(transaction, marker),
        )

    def _await_decision(self, transaction: TransactionMetadata) -> None:
        """Wait for the commit again: the replicas were too slow, but the decision is final."""
        if self.state is ShardState.ACTIVE and transaction.marker is not None:
            effects = Effects(replies=[(self._decision(transaction), transaction.marker)])
            self.carry_out(transaction.transactional_id, effects)

    def _send(self, transaction: TransactionMetadata, marker: Marker) -> None:
        if not transaction.partitions:
            self._marked(transaction, None)
            return
        marking = MarkerRound(
            marker,
            self.leader_epoch,
            self._context.sender,
            lambda partition: self._marked(transaction, partition),
            self._context.failures,
        )
        self._markings[transaction.transactional_id] = marking
        for partition in sorted(transaction.partitions):
            marking.send(partition)

    def _marked(self, transaction: TransactionMetadata, partition: TopicPartition | None) -> None:
        effects = transaction.marked(self._context.now_ms(), partition)
        if effects.records:
            self._count(transaction)
            self._markings.pop(transaction.transactional_id, None)
            self.carry_out_transaction(transaction, effects)
            self._notify_waiting(transaction.transactional_id)

    def _count(self, transaction: TransactionMetadata) -> None:
        stats = self._context.stats
        stats.committed += transaction.state is TransactionState.COMPLETE_COMMIT
        stats.aborted += transaction.state is TransactionState.COMPLETE_ABORT

    def when_ended(self, transactional_id: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once the transaction has ended or the shard is closed. Return a function
        that cancels this."""
        waiting = self._waiting.setdefault(transactional_id, {})
        waiting[callback] = None
        return lambda: self._stop_waiting(transactional_id, callback)

    def _stop_waiting(self, transactional_id: str, callback: Callable[[], None]) -> None:
        waiting = self._waiting.get(transactional_id)
        if waiting is not None:
            waiting.pop(callback, None)
            if not waiting:
                del self._waiting[transactional_id]

    def _notify_waiting(self, transactional_id: str) -> None:
        failures = self._context.failures
        for callback in self._waiting.pop(transactional_id, ()):
            failures.run(CallbackKind.TRANSACTION_END, transactional_id, callback)

    # Time

    def expire_timer(self, now_ms: int, transactional_id: str, key: TimerKey) -> None:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return
        effects = transaction.expire(now_ms, key)
        if effects.marker is not None:
            _logger.info("aborting the transaction of %r, which timed out", transactional_id)
        self.carry_out_transaction(transaction, effects)

    def expire_ids(self, now_ms: int, expiration_ms: int) -> int:
        """Delete transactional ids that were unused for `expiration_ms`; return how many."""
        expired = [
            transaction
            for transaction in self.transactions.values()
            if transaction.is_expired(now_ms, expiration_ms)
        ]
        for transaction in expired:
            del self.transactions[transaction.transactional_id]
            self.carry_out_transaction(transaction, transaction.delete())
        return len(expired)


class TransactionReplay(ShardReplay):
    """Builds transactions from records. Records of unknown kinds are skipped. Damaged records are
    skipped and logged."""

    __slots__ = ("_shard",)

    def __init__(self, shard: TransactionShard) -> None:
        self._shard = shard

    def apply(self, stored: Record, producer_id: int) -> None:
        try:
            self._apply(stored)
        except (DamagedRecordError, BrokerError) as error:
            _logger.error(
                "skipped the record at offset %d of partition %d of __transaction_state: %s",
                stored.offset,
                self._shard.index,
                error,
            )

    def _apply(self, stored: Record) -> None:
        if stored.key is None:
            raise BrokerError(ErrorCode.INVALID_RECORD, "the record has no key")
        transactional_id = record.decode_key(stored.key)
        if transactional_id is None:
            return
        value = record.decode_value(stored.value)
        if value is None:
            self._shard.transactions.pop(transactional_id, None)
            return
        transaction = self._shard.new(transactional_id)
        transaction.restore(value)
        self._shard.transactions[transactional_id] = transaction

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Records of transactional ids are never part of a transaction."""

    def finish(self) -> None:
        pass
