"""Which batches of a transaction a partition may take (KIP-890).

A partition that takes a batch of a transaction that its coordinator does not know of, or has ended,
would never get the marker that ends it, and hold up its readers for ever. So the first batch of a
transaction in a partition is admitted by the coordinator: it says whether the partition was added
(the classic protocol), or adds it (transaction version 2). While the transaction is open in the
partition, further batches of the same epoch need no admission.

A producer of version 2 begins its next transaction as soon as the one before is decided, and its
markers may still be on their way. Then the coordinator is asked again when they have arrived, for a
while: clients rest much longer before they retry.

The coordinator's answer may have to wait; by then the transaction may have ended. So it is asked
once more, of what it knows at that moment, when the batch is appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from millstream.broker.context import Context
from millstream.coordination.effects import Producer
from millstream.coordination.ticket import Ticket
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.replication.partition import Partition
from millstream.transactions.coordinator import Coordinator
from millstream.transactions.state import BUMPING_VERSION

_Codes = dict[TopicPartition, ErrorCode]

#: Longest wait for the markers of the transaction before.
_ENDING_S_MAX: Final = 1.0

#: The coordinator can't say just now.
UNDECIDED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class Admission:
    """What the coordinator said about partitions that a producer writes to."""

    __slots__ = (
        "_codes",
        "_has_waited",
        "_is_waived",
        "_producer",
        "_transactional_id",
        "_transactions",
    )

    def __init__(self, transactions: Coordinator, transactional_id: str) -> None:
        self._transactions = transactions
        self._transactional_id = transactional_id
        self._producer = Producer(-1, -1)
        self._codes: _Codes = {}
        self._is_waived = False
        self._has_waited = False

    def waive(self) -> None:
        """Admit everything: the broker is set not to ask."""
        self._is_waived = True

    def ask(
        self,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        then: Callable[[], None],
        *,
        adds: bool,
    ) -> None:
        """Have partitions admitted; `then` is called when that is decided, perhaps at once."""
        self._producer = producer

        def decided(codes: _Codes | None) -> None:
            self._codes = codes or dict.fromkeys(partitions, ErrorCode.NONE)
            then()

        def refused(code: ErrorCode) -> None:
            if code == ErrorCode.CONCURRENT_TRANSACTIONS and adds and not self._has_waited:
                self._has_waited = True
                self._after_ending(lambda: self.ask(producer, partitions, then, adds=adds))
                return
            self._codes = dict.fromkeys(partitions, code)
            then()

        ticket = Ticket(decided, refused)
        transactions, transactional_id = self._transactions, self._transactional_id
        if adds:
            transactions.add_partitions(
                transactional_id, producer, partitions, BUMPING_VERSION, ticket
            )
        else:
            transactions.verify_partitions(transactional_id, producer, partitions, ticket)
        transactions.flush(transactional_id)

    def _after_ending(self, ask_again: Callable[[], None]) -> None:
        """When the transaction before has ended, or it took too long."""
        is_done = False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                timer.cancel()
                ask_again()

        timer = asyncio.get_running_loop().call_later(_ENDING_S_MAX, once)
        self._transactions.when_ended(self._transactional_id, once)

    def check(self, partition: Partition, producer: Producer) -> None:
        """Raise unless a batch of the producer's transaction may be appended now."""
        if self._is_waived or partition.log.has_open_transaction(*producer):
            return
        topic_partition = partition.topic_partition
        code = self._codes.get(topic_partition, ErrorCode.INVALID_TXN_STATE)
        if code == ErrorCode.NONE and not (
            producer == self._producer
            and self._transactions.is_open(self._transactional_id, producer, topic_partition)
        ):
            code = ErrorCode.INVALID_TXN_STATE
        if code != ErrorCode.NONE:
            raise BrokerError(code, f"{topic_partition} is not part of the producer's transaction")


def is_verified(context: Context) -> bool:
    """Whether batches of the classic protocol need to be admitted."""
    return context.services.config.transaction_partition_verification_enable
