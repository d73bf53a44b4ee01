"""What the driver does once all tasks of a batch have prepared their transactions, or one failed.

    claim the query       other drivers can't decide any more
    look for a decision   this batch or a later one: its transactions are committed, ours aborted
    adopt                 the tasks' transactions get new epochs: whoever saw them before is fenced
    decide                one durable record names all transactions of the batch
    roll forward          each of them is committed; again and again, by whoever comes
    sweep                 what is still open of this query is nobody's, and is aborted

Another driver of the query, stopped anywhere and going on now, can do no harm: it decides nothing,
as its claim is gone; and what it was about to sweep it saw before we adopted it, or finds out that
its claim is gone.

Before the decision nothing of the batch can become visible, after it all of it must. Nothing is
kept here between batches: each call finds out where the one before it stopped.
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
from millstream.spark.sink.write_task import PreparedTransaction, transactional_id_prefix
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
    """Ends the transactions of one query."""

    def __init__(self, cluster: ClusterClient, options: SinkOptions, owner: str) -> None:
        self._cluster = cluster
        self._owner = owner
        self._ledger = DecisionLog(cluster, options.commit_topic, owner)

    def commit(self, batch: int, prepared: Sequence[PreparedTransaction]) -> None:
        """Make the batch visible, if it is not yet. Raises ProtocolError, BrokerError."""
        self._ledger.claim()
        decision = self._ledger.last()
        if decision is None or decision.batch < batch:
            never_expires = all(each.never_expires for each in prepared)
            decision = Decision(batch, adopt(self._cluster, prepared), never_expires)
            self._ledger.decide(decision)
            self._roll_forward(decision)
        else:
            if decision.batch == batch:
                self._roll_forward(decision)
            self._discard(prepared)
        self._abort_leftovers(decision)

    def abort(self, batch: int, prepared: Sequence[PreparedTransaction]) -> None:
        """Give the batch up, unless it was decided: then whoever tries it again finishes it."""
        self._ledger.claim()
        decision = self._ledger.last()
        if decision is None or decision.batch < batch:
            self._discard(prepared)

    def _roll_forward(self, decision: Decision) -> None:
        roll_forward(self._cluster, decision, f"batch {decision.batch} of query {self._owner}")

    def _discard(self, prepared: Sequence[PreparedTransaction]) -> None:
        # What was ended or fenced in the meantime is refused, and that is as good.
        TransactionEnder(self._cluster, is_commit=False).end([each.holder for each in prepared])

    def _abort_leftovers(self, decision: Decision) -> None:
        decided = {each.transactional_id for each in decision.transactions}
        found = [
            each
            for each in open_transactions(self._cluster, self._owner)
            if each.transactional_id not in decided
        ]
        if found:
            self._ledger.confirm()
            TransactionEnder(self._cluster, is_commit=False).end(found)


def roll_forward(cluster: ClusterClient, decision: Decision, what: str) -> None:
    """Commit every transaction of a decision. Raises ProtocolError if one can't be."""
    ender = TransactionEnder(cluster, is_commit=True)
    ender.end(decision.transactions)
    lost = {
        each.transactional_id: code
        for each, code in ender.refused.items()
        # An id is forgotten long after its transaction ended; one that does not expire is ended
        # by a commit, or by a person.
        if not (decision.never_expires and code is ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    }
    if lost:
        names = ", ".join(f"{name} ({code.name})" for name, code in sorted(lost.items()))
        raise ProtocolError(
            f"{what} was decided, but some of its transactions are not there to be committed: they"
            " were aborted by a timeout (transaction.max.timeout.ms) or by a person, and their rows"
            f" are not in the output; or another driver of the query runs. {names}. Brokers that"
            " allow two-phase commit (transaction.two.phase.commit.enable) have no such timeout."
        )


def adopt(
    cluster: ClusterClient, prepared: Sequence[PreparedTransaction]
) -> tuple[ProducerIdentity, ...]:
    """Become the only one who may end these transactions. Raises ProtocolError unless every one
    is still there: nothing is decided yet, so the batch can be tried again."""
    return tuple(_adopt(cluster, each) for each in prepared)


def _adopt(cluster: ClusterClient, prepared: PreparedTransaction) -> ProducerIdentity:
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
        f"transaction {holder.transactional_id} was aborted before its batch was decided: its time"
        " was up (kafka.transaction.timeout.ms), or somebody fenced it"
    )


def open_transactions(cluster: ClusterClient, owner: str) -> list[ProducerIdentity]:
    """All open transactions of a query or job, and who may end them."""
    described = (transaction_request.describe(cluster, each) for each in _open_ids(cluster, owner))
    return [each.identity for each in described if each is not None and each.is_open]


def _open_ids(cluster: ClusterClient, owner: str) -> list[str]:
    # Owners may begin with each other's names; what follows a name is the task's and the slot's.
    pattern = re.compile(re.escape(transactional_id_prefix(owner)) + r"-[0-9]+-[0-9]+")
    request = ListTransactionsRequest(
        state_filters=[_ONGOING], transactional_id_pattern=pattern.pattern
    )
    found: list[str] = []

    def ask(address: Address) -> ListTransactionsResponse:
        answer = cluster.connection(address).call(request, ListTransactionsResponse)
        if answer.error_code:
            raise BrokerError(ErrorCode(answer.error_code), "listing transactions")
        return answer

    for address in _addresses(cluster):
        answer = cluster.attempt("list transactions", partial(ask, address))
        found += [
            row.transactional_id
            for row in answer.transaction_states
            if pattern.fullmatch(row.transactional_id)
        ]
    return found


def _addresses(cluster: ClusterClient) -> list[Address]:
    """Of all brokers."""

    def ask() -> list[Address]:
        answer = cluster.any_connection().call(MetadataRequest(topics=[]), MetadataResponse)
        return [Address(row.host, row.port) for row in answer.brokers]

    return cluster.attempt("find the brokers", ask)
