"""The requests of a transaction: initialize the producer, add partitions, prepare, describe, end.

The sink uses the classic transaction protocol on purpose. There an epoch is valid until the
producer is initialized again. Any process that knows the producer id and epoch can therefore
repeat EndTxn with the same result.

Every call retries within the connection's deadline, and raises BrokerError for errors that a retry
cannot solve. Not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_PRODUCER_ID
from millstream.model.topic import TopicPartition
from millstream.protocol.broker_connection import BrokerConnection
from millstream.protocol.cluster_client import RETRIABLE, TRANSACTION, ClusterClient
from millstream.spark.error import ConnectionLost
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TxnTopic,
)
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

T = TypeVar("T")

_ONGOING: Final = "Ongoing"
_CLASSIC_ADD_VERSION: Final = 3
_CLASSIC_END_VERSION: Final = 4
_TWO_PHASE_VERSION: Final = 6
#: Errors of brokers that know the version but do not support or allow two-phase commit.
_NOT_TWO_PHASE: Final = (
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
)
#: The coordinator usually completes a transaction within this time.
_ENDING_S: Final = 0.004


class ProducerIdentity(NamedTuple):
    """The transactional id, producer id and epoch of a producer."""

    transactional_id: str
    producer_id: int
    epoch: int


class TransactionStatus(NamedTuple):
    """The last producer of a transactional id, and whether its transaction is open."""

    identity: ProducerIdentity
    is_open: bool


def init_producer(
    cluster: ClusterClient,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdentity | None = None,
) -> ProducerIdentity:
    """Initialize a producer: fence earlier producers of the id and abort an open transaction.

    With `expected`, raise PRODUCER_FENCED if another producer is the last one of the id."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    )
    if expected is not None:
        _, request.producer_id, request.producer_epoch = expected

    def attempt(connection: BrokerConnection) -> ProducerIdentity:
        response = connection.call(request, InitProducerIdResponse)
        _check(response.error_code, transactional_id)
        return ProducerIdentity(transactional_id, response.producer_id, response.producer_epoch)

    return _call_coordinator(cluster, transactional_id, "start a transaction", attempt)


def init_idempotent(cluster: ClusterClient) -> ProducerIdentity:
    """Initialize a producer without a transactional id."""

    def attempt() -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        response = cluster.any_connection().call(request, InitProducerIdResponse)
        _check(response.error_code, "")
        return ProducerIdentity("", response.producer_id, response.producer_epoch)

    return cluster.attempt("get a producer id", attempt)


def prepare(cluster: ClusterClient, producer: ProducerIdentity) -> ProducerIdentity | None:
    """Prepare the producer's open transaction and fence the producer.

    Return the identity that may end the transaction, which no longer expires. Return None if the
    brokers do not support this; the transaction then keeps its timeout."""
    transactional_id = producer.transactional_id
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=1,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        enable_2pc=True,
        keep_prepared_txn=True,
    )

    def attempt(connection: BrokerConnection) -> ProducerIdentity | None:
        if connection.version(InitProducerIdRequest) < _TWO_PHASE_VERSION:
            return None
        response = connection.call(request, InitProducerIdResponse)
        if response.error_code in _NOT_TWO_PHASE:
            return None
        _check(response.error_code, transactional_id)
        if response.ongoing_txn_producer_id == NO_PRODUCER_ID:
            problem = f"{transactional_id} has no open transaction"
            raise BrokerError(ErrorCode.INVALID_TXN_STATE, problem)
        return ProducerIdentity(transactional_id, response.producer_id, response.producer_epoch)

    return _call_coordinator(cluster, transactional_id, "prepare a transaction", attempt)


def describe(cluster: ClusterClient, transactional_id: str) -> TransactionStatus | None:
    """Return the status of the id, or None if the id was never used."""

    def attempt(connection: BrokerConnection) -> TransactionStatus | None:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (row,) = connection.call(request, DescribeTransactionsResponse).transaction_states
        if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        _check(row.error_code, transactional_id)
        if row.transaction_state.startswith("Prepare"):
            raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is ending")
        identity = ProducerIdentity(transactional_id, row.producer_id, row.producer_epoch)
        return TransactionStatus(identity, row.transaction_state == _ONGOING)

    return _call_coordinator(cluster, transactional_id, "describe a transaction", attempt)


def add_partitions(
    cluster: ClusterClient, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> None:
    """Add partitions to the producer's transaction."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    transactional_id, producer_id, epoch = producer
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[
            TxnTopic(name=topic, partitions=numbers) for topic, numbers in topics.items()
        ],
    )

    def attempt(connection: BrokerConnection) -> None:
        response = connection.call(request, AddPartitionsToTxnResponse, _CLASSIC_ADD_VERSION)
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                _check(row.partition_error_code, f"{topic.name}-{row.partition_index}")

    _call_coordinator(cluster, transactional_id, "add partitions to a transaction", attempt)


class TransactionEnder:
    """Commits or aborts many transactions, with pipelined requests to each coordinator."""

    def __init__(self, cluster: ClusterClient, *, is_commit: bool) -> None:
        self._cluster = cluster
        self._is_commit = is_commit
        #: The transactions whose end the coordinator rejected, with the error.
        self.rejected: dict[ProducerIdentity, ErrorCode] = {}

    def end(self, transactions: Sequence[ProducerIdentity]) -> None:
        """End every transaction or record its rejection. Raises Unavailable."""
        pending = list(transactions)
        retry = self._cluster.backoff(f"end {len(pending)} transactions")
        while pending:
            try:
                pending = self._round(pending)
                problem: Exception = BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)
            except ConnectionLost as lost:
                problem = lost
            except BrokerError as error:
                if error.code not in RETRIABLE:
                    raise
                problem = error
            if pending:
                self._cluster.forget_leaders()
                retry.pause(problem)

    def _round(self, transactions: list[ProducerIdentity]) -> list[ProducerIdentity]:
        """Send one EndTxn per transaction. Return the transactions to retry."""
        by_connection: dict[BrokerConnection, list[ProducerIdentity]] = {}
        for each in transactions:
            connection = self._cluster.coordinator_connection(each.transactional_id, TRANSACTION)
            by_connection.setdefault(connection, []).append(each)
        retries: list[ProducerIdentity] = []
        for connection, share in by_connection.items():
            for each in share:
                connection.send(self._request(each), _CLASSIC_END_VERSION)
            for each in share:
                code = ErrorCode(connection.receive(EndTxnResponse).error_code)
                if code in RETRIABLE or code == ErrorCode.CONCURRENT_TRANSACTIONS:
                    retries.append(each)
                elif code:
                    self.rejected[each] = code
        return retries

    def _request(self, transaction: ProducerIdentity) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            committed=self._is_commit,
        )


def _call_coordinator(
    cluster: ClusterClient,
    transactional_id: str,
    what: str,
    action: Callable[[BrokerConnection], T],
) -> T:
    """Call the id's coordinator. RetryBackoff while it completes a transaction of the id."""
    retry = cluster.backoff(f"{what} of {transactional_id}")
    is_first = True
    while True:
        try:
            return cluster.attempt(
                what, lambda: action(cluster.coordinator_connection(transactional_id, TRANSACTION))
            )
        except BrokerError as error:
            if error.code != ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
            if is_first:
                time.sleep(_ENDING_S)
            else:
                retry.pause(error)
            is_first = False


def _check(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(code), what)
