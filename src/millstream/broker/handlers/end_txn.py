"""EndTxn: versions 0 to 5.

Commits or aborts a transaction. The response is sent once the decision is committed to the
coordinator's log; the markers follow. From version 5 the epoch is raised, and the response holds
the producer's new id and epoch. A fenced producer gets INVALID_PRODUCER_EPOCH up to version 1, and
PRODUCER_FENCED from version 2.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import await_result, start_reply
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.transactions.state import BUMPING_VERSION, EndRequest
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_FENCED_SINCE = 2
_BUMPING_SINCE = 5


def handle(
    request: EndTxnRequest, context: Context
) -> EndTxnResponse | Reply[ProducerIdAndEpoch] | Coroutine[Any, Any, EndTxnResponse]:
    context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    transactions = context.services.transactions
    is_bumping = context.version >= _BUMPING_SINCE
    end = EndRequest(
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.committed,
        BUMPING_VERSION if is_bumping else 0,
    )
    try:
        if is_bumping and transactions.end_needs_producer_id(
            request.transactional_id, request.producer_epoch
        ):
            return _end_with_new_id(request.transactional_id, end, context)
    except BrokerError as error:
        return _rejection(error.code, context)
    return start_reply(
        ReplyKind.END_TXN,
        context,
        lambda reply: transactions.end(request.transactional_id, end, None, reply),
        lambda code: _rejection(code, context),
        _response,
    )


API: Final = ApiEntry(
    EndTxnRequest,
    EndTxnResponse,
    versions=(0, 5),
    handle=handle,
    access=(Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),),
)


async def _end_with_new_id(
    transactional_id: str, end: EndRequest, context: Context
) -> EndTxnResponse:
    """End a transaction whose producer id has no epochs left, and give the producer a new id."""
    try:
        producer_id = await context.services.producer_ids.next()
        producer: ProducerIdAndEpoch = await await_result(
            ReplyKind.END_TXN,
            context,
            lambda reply: context.services.transactions.end(
                transactional_id, end, producer_id, reply
            ),
        )
    except BrokerError as error:
        return _rejection(error.code, context)
    return _response(producer)


def _response(producer: ProducerIdAndEpoch) -> EndTxnResponse:
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _rejection(code: ErrorCode, context: Context) -> EndTxnResponse:
    if code == ErrorCode.PRODUCER_FENCED and context.version < _FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=code)
