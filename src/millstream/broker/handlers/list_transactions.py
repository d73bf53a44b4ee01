"""ListTransactions: versions 0 to 2.

Lists the transactional ids that this broker coordinates, filtered by state, producer id, duration
(version 1) and a pattern that must match the whole id (version 2). Ids that the client may not
describe are left out.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.groups.subscription.pattern import compile_pattern
from millstream.groups.subscription.pattern_syntax import TEXT_ALPHABET, as_text
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError
from millstream.model.sentinel import NO_TIMESTAMP
from millstream.transactions.state import TransactionMetadata, TransactionState
from millstream.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_LABELS = frozenset(state.label for state in TransactionState)


def handle(request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
    shards = context.services.transactions.shards
    try:
        found = [each for each in shards.all_transactions() if _is_wanted(each, request, context)]
        if request.transactional_id_pattern:
            pattern = compile_pattern(request.transactional_id_pattern, TEXT_ALPHABET)
            matching = pattern.resolve(as_text(each.transactional_id) for each in found)
            found = [each for each in found if as_text(each.transactional_id) in matching]
    except BrokerError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(
        unknown_state_filters=[each for each in request.state_filters if each not in _LABELS],
        transaction_states=[
            ListTransactionsResponse.State(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.label,
            )
            for each in found
        ],
    )


API: Final = ApiEntry(
    ListTransactionsRequest,
    ListTransactionsResponse,
    versions=(0, 2),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "to see a transactional id"),),
)


def _is_wanted(
    transaction: TransactionMetadata, request: ListTransactionsRequest, context: Context
) -> bool:
    if not context.shows(
        Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
    ):
        return False
    if request.producer_id_filters and transaction.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and transaction.state.label not in request.state_filters:
        return False
    if request.duration_filter < 0:
        return True
    if transaction.start_ms == NO_TIMESTAMP:
        return False
    open_ms = context.services.transactions.shards.now_ms - transaction.start_ms
    return open_ms > request.duration_filter
