"""AddPartitionsAfterEnd: version 0. Sent by brokers; see `broker/transaction/admission.py`.

The response is sent once each of its transactions is decided, at most after `_WAIT_S_MAX`: later
requests of the same connection wait for it.
"""

from __future__ import annotations

from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.handlers.add_partitions_to_txn import (
    BATCHED_SINCE,
    add_to_transaction,
    reject_transaction,
)
from millstream.broker.reply import CombinedReply
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.transactions.end_wait import EndWait
from millstream.wire.messages.add_partitions_after_end import (
    AddPartitionsAfterEndRequest,
    AddPartitionsAfterEndResponse,
)
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse

_WAIT_S_MAX: Final = 0.02


def handle(request: AddPartitionsAfterEndRequest, context: Context) -> Reply[Any]:
    context.require_cluster(Operation.CLUSTER_ACTION)
    response = AddPartitionsAfterEndResponse()
    combined = CombinedReply(ReplyKind.ADD_PARTITIONS_AFTER_END, context, response)
    end_wait = EndWait(context.services.transactions, min(request.wait_ms / 1000, _WAIT_S_MAX))
    for transaction in request.transactions:
        row = AddPartitionsToTxnResponse.Transaction(transactional_id=transaction.transactional_id)
        response.results_by_transaction.append(row)
        add_to_transaction(transaction, BATCHED_SINCE, row.topic_results, combined, end_wait)
    return combined.finish()


def _error_response(
    request: AddPartitionsAfterEndRequest, context: Context, code: ErrorCode
) -> AddPartitionsAfterEndResponse:
    response = AddPartitionsAfterEndResponse()
    for transaction in request.transactions:
        row = AddPartitionsToTxnResponse.Transaction(transactional_id=transaction.transactional_id)
        response.results_by_transaction.append(row)
        reject_transaction(transaction, row.topic_results, code)
    return response


API: Final = ApiEntry(
    AddPartitionsAfterEndRequest,
    AddPartitionsAfterEndResponse,
    versions=(0, 0),
    handle=handle,
    error_response=_error_response,
    access=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
)
