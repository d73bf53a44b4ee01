"""Commits or aborts a batch on the driver, once its tasks have prepared their transactions.

    claim the query       fence other drivers, so that they can no longer decide
    find the decision     if this batch is decided, commit its transactions and abort the new ones
    adopt                 give the prepared transactions new epochs; this fences older drivers
    decide                write one durable record that names all transactions of the batch
    roll forward          commit each of them; any later driver repeats this if needed
    abort leftovers       abort the other open transactions of this query

A paused driver that resumes late does no harm. It cannot decide, because its claim is fenced. It
listed leftovers either before they were adopted, so that its epochs are fenced, or after, and then
`check_claim` fails.

Before the decision no record of the batch can become visible. After it all records must. This class
keeps no state between batches: each call finds out how far the previous call came.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.cluster_client import ClusterClient
from millstream.protocol.connection_setting import Address
from millstream.spark.error import ProtocolError
from millstream.spark.sink import transaction_request
from millstream.spark.sink.decision import Decision
from millstream.spark.sink.decision_log import DecisionLog
from millstream.spark.sink.sink_options import SinkOptions
from millstream.spark.sink.transaction_request import ProducerIdentity, TransactionEnder
from millstream.spark.sink.write_task import TaskTransaction, transactional_id_prefix
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

_ONGOING: Final = "Ongoing"
_GONE: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
)


class BatchCommitter:
    """Ends the transactions of one query's batches."""

    def __init__(self, cluster: ClusterClient, options: SinkOptions, owner: str) -> None:
        self._cluster = cluster
        self._owner = owner
        self._decisions = DecisionLog(cluster, options.commit_topic, owner)

    def commit(self, batch: int, prepared: Sequence[TaskTransaction]) -> None:
        """Make the batch visible, if it is not yet. Raises ProtocolError or BrokerError."""
        self._decisions.claim()
        decision = self._decisions.last()
        if decision is None or decision.batch < batch:
            never_expires = all(each.never_expires for each in prepared)
            decision = Decision(batch, adopt(self._cluster, prepared), never_expires)
            self._decisions.decide(decision)
            self._roll_forward(decision)
        else:
            if decision.batch == batch:
                self._roll_forward(decision)
            self._discard(prepared)
        self._abort_leftovers(decision)

    def abort(self, batch: int, prepared: Sequence[TaskTransaction]) -> None:
        """Abort the batch unless it is decided. The next attempt then completes it."""
        self._decisions.claim()
        decision = self._decisions.last()
        if decision is None or decision.batch < batch:
            self._discard(prepared)

    def _roll_forward(self, decision: Decision) -> None:
        roll_forward(self._cluster, decision, f"batch {decision.batch} of query {self._owner}")

    def _discard(self, prepared: Sequence[TaskTransaction]) -> None:
        # A rejection means that the transaction is already ended or fenced.
        TransactionEnder(self._cluster, is_commit=False).end([each.holder for each in prepared])

    def _abort_leftovers(self, decision: Decision) -> None:
        decided = {each.transactional_id for each in decision.transactions}
        found = [
            each
            for each in open_transactions(self._cluster, self._owner)
            if each.transactional_id not in decided
        ]
        if found:
            self._decisions.check_claim()
            TransactionEnder(self._cluster, is_commit=False).end(found)


def roll_forward(cluster: ClusterClient, decision: Decision, what: str) -> None:
    """Commit every transaction of a decision. Raises ProtocolError if one cannot be committed."""
    ender = TransactionEnder(cluster, is_commit=True)
    ender.end(decision.transactions)
    lost = {
        each.transactional_id: code
        for each, code in ender.rejected.items()
        # The coordinator forgets an id long after its transaction ended. A prepared transaction
        # is ended only by a commit or by an operator.
        if not (decision.never_expires and code is ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    }
    if lost:
        names = ", ".join(f"{name} ({code.name})" for name, code in sorted(lost.items()))
        raise ProtocolError(
            f"{what} was decided, but some of its transactions cannot be committed: {names}. Either"
            " a timeout (transaction.max.timeout.ms) or an operator aborted them, and their rows"
            " are not in the output; or another driver of the query runs. Brokers that allow"
            " two-phase commit (transaction.two.phase.commit.enable) have no such timeout."
        )


def adopt(
    cluster: ClusterClient, prepared: Sequence[TaskTransaction]
) -> tuple[ProducerIdentity, ...]:
    """Fence all others who could end these transactions; return the identities that may end them.

    Raises ProtocolError if a transaction is no longer open. Nothing is decided then, so the batch
    can be retried."""
    return tuple(_adopt(cluster, each) for each in prepared)


def _adopt(cluster: ClusterClient, prepared: TaskTransaction) -> ProducerIdentity:
    holder = prepared.holder
    try:
        adopted = transaction_request.prepare(cluster, holder)
    except BrokerError as error:
        if error.code not in _GONE:
            raise
    else:
        if adopted is not None:
            return adopted
        found = transaction_request.describe(cluster, holder.transactional_id)
        if found is not None and found.is_open and found.identity == holder:
            return holder
    raise ProtocolError(
        f"transaction {holder.transactional_id} was aborted before its batch was decided: it timed"
        " out (kafka.transaction.timeout.ms), or another producer fenced it"
    )


def open_transactions(cluster: ClusterClient, owner: str) -> list[ProducerIdentity]:
    """Return the identities that may end the open transactions of a query or job."""
    described = (transaction_request.describe(cluster, each) for each in _open_ids(cluster, owner))
    return [each.identity for each in described if each is not None and each.is_open]


def _open_ids(cluster: ClusterClient, owner: str) -> list[str]:
    # One owner's name may be a prefix of another's. The numbers of the task and slot follow it.
    pattern = re.compile(re.escape(transactional_id_prefix(owner)) + r"-[0-9]+-[0-9]+")
    request = ListTransactionsRequest(
        state_filters=[_ONGOING], transactional_id_pattern=pattern.pattern
    )
    found: list[str] = []

    def attempt(address: Address) -> ListTransactionsResponse:
        response = cluster.connection(address).call(request, ListTransactionsResponse)
        if response.error_code:
            raise BrokerError(ErrorCode(response.error_code), "listing transactions")
        return response

    for address in _addresses(cluster):
        response = cluster.attempt("list transactions", partial(attempt, address))
        found += [
            row.transactional_id
            for row in response.transaction_states
            if pattern.fullmatch(row.transactional_id)
        ]
    return found


def _addresses(cluster: ClusterClient) -> list[Address]:
    """Return the addresses of all brokers."""

    def attempt() -> list[Address]:
        response = cluster.any_connection().call(MetadataRequest(topics=[]), MetadataResponse)
        return [Address(row.host, row.port) for row in response.brokers]

    return cluster.attempt("find the brokers", attempt)
