"""InitProducerId: versions 0 to 6.

Without a transactional id the response is a new producer id with epoch 0, as in Kafka. The id comes
from a durably reserved block, so no two producers ever have the same one.

With a transactional id its coordinator raises the epoch, which fences every earlier producer with
that id. An open transaction is aborted first, and the producer retries (CONCURRENT_TRANSACTIONS).
From version 3 a producer may send its present id and epoch, to continue after an error (KIP-360). A
fenced producer gets INVALID_PRODUCER_EPOCH up to version 3, and PRODUCER_FENCED from version 4.

From version 6 a producer may request transactions without a timeout
(TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the settings disallow them), and may keep an open
transaction to end it later; the response then holds the id and epoch that wrote it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import await_result, start_reply
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.acl import CLUSTER_NAME, Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.model.sentinel import NO_EPOCH, NO_PRODUCER_ID
from millstream.transactions.state import InitResult, PreparedTransaction
from millstream.transactions.transaction_coordinator import InitProducerOptions
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FENCED_SINCE = 4


def handle(
    request: InitProducerIdRequest, context: Context
) -> InitProducerIdResponse | Reply[InitResult] | Coroutine[Any, Any, InitProducerIdResponse]:
    denial = _denial(request, context)
    if denial is not None:
        return _rejection(denial, context)
    if request.transactional_id is None:
        return _assign_id(context)
    try:
        expected = _expected(request)
        epoch = None if expected is None else expected.epoch
        transactions = context.services.transactions
        if request.transactional_id and transactions.init_needs_producer_id(
            request.transactional_id, epoch
        ):
            return _begin_with_new_id(request, expected, context)
    except BrokerError as error:
        return _rejection(error.code, context)
    return start_reply(
        ReplyKind.INIT_PRODUCER_ID,
        context,
        lambda reply: _begin(request, expected, None, context, reply),
        lambda code: _rejection(code, context),
        lambda result: _response(result, context),
    )


API: Final = ApiEntry(
    InitProducerIdRequest,
    InitProducerIdResponse,
    versions=(0, 6),
    handle=handle,
    audit=change.producer_fenced,
    access=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "with a transactional id"),
        Right(Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, "for enable_2pc"),
        Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "without a transactional id"),
        Right(Operation.WRITE, ResourceType.TOPIC, "on any topic instead of IdempotentWrite"),
    ),
)


def _denial(request: InitProducerIdRequest, context: Context) -> ErrorCode | None:
    """Return the error code if the client may not use the transactional id. A client without one
    needs IdempotentWrite on the cluster, or Write on any topic (KIP-679)."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        if context.holds_cluster(Operation.IDEMPOTENT_WRITE):
            return None
        if context.allows_any(Operation.WRITE, ResourceType.TOPIC):
            return None
        if context.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME):
            return None
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    kind = ResourceType.TRANSACTIONAL_ID
    if context.allows(Operation.WRITE, kind, transactional_id) and (
        not request.enable_2pc or context.allows(Operation.TWO_PHASE_COMMIT, kind, transactional_id)
    ):
        return None
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def _assign_id(context: Context) -> InitProducerIdResponse:
    try:
        producer_id = await context.services.producer_ids.next()
    except BrokerError as error:
        return _rejection(error.code, context)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _begin_with_new_id(
    request: InitProducerIdRequest, expected: ProducerIdAndEpoch | None, context: Context
) -> InitProducerIdResponse:
    try:
        producer_id = await context.services.producer_ids.next()
        result: InitResult = await await_result(
            ReplyKind.INIT_PRODUCER_ID,
            context,
            lambda reply: _begin(request, expected, producer_id, context, reply),
        )
    except BrokerError as error:
        return _rejection(error.code, context)
    return _response(result, context)


def _begin(
    request: InitProducerIdRequest,
    expected: ProducerIdAndEpoch | None,
    new_producer_id: int | None,
    context: Context,
    reply: Reply[InitResult],
) -> None:
    context.services.transactions.init_producer(
        request.transactional_id or "",
        InitProducerOptions(
            request.transaction_timeout_ms, request.enable_2pc, request.keep_prepared_txn
        ),
        expected,
        new_producer_id,
        reply,
    )


def _expected(request: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    """Return the id and epoch that the producer sent, or None. Raises INVALID_REQUEST if only one
    of them is set."""
    has_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_EPOCH
    if has_id != has_epoch:
        raise BrokerError(ErrorCode.INVALID_REQUEST)
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if has_id else None


def _response(result: InitResult, context: Context) -> InitProducerIdResponse:
    if isinstance(result, ErrorCode):
        return _rejection(result, context)
    if isinstance(result, PreparedTransaction):
        response = _response(result.holder, context)
        if result.writer is not None:
            response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch = result.writer
        return response
    return InitProducerIdResponse(producer_id=result.producer_id, producer_epoch=result.epoch)


def _rejection(code: ErrorCode, context: Context) -> InitProducerIdResponse:
    if code == ErrorCode.PRODUCER_FENCED and context.version < _FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
