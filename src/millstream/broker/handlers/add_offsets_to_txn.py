"""AddOffsetsToTxn: versions 0 to 4.

Adds the group's partition of the offsets topic to a transaction. A fenced producer gets
INVALID_PRODUCER_EPOCH up to version 1, and PRODUCER_FENCED from version 2.

Some clients look up the group's coordinator only afterwards, so this handler also creates the
offsets topic if it does not exist; the producer then retries.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import start_reply
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FENCED_SINCE = 2
#: The transaction version: only producers of the classic protocol send this request.
_VERSION = 0


def handle(
    request: AddOffsetsToTxnRequest, context: Context
) -> Reply[None] | Coroutine[Any, Any, AddOffsetsToTxnResponse]:
    context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    context.require(Operation.READ, ResourceType.GROUP, request.group_id)
    services = context.services
    try:
        index = services.groups.shards.index_of(request.group_id)
    except BrokerError:
        return _create_then_reject(context)
    partition = TopicPartition(OFFSETS_TOPIC, index)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    return start_reply(
        ReplyKind.ADD_OFFSETS_TO_TXN,
        context,
        lambda reply: services.transactions.add_partitions(
            request.transactional_id, producer, [partition], _VERSION, reply
        ),
        lambda code: _rejection(code, context),
        lambda _: AddOffsetsToTxnResponse(),
    )


API: Final = ApiEntry(
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    versions=(0, 4),
    handle=handle,
    access=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.READ, ResourceType.GROUP),
    ),
)


async def _create_then_reject(context: Context) -> AddOffsetsToTxnResponse:
    await context.services.topics.create_missing([OFFSETS_TOPIC])
    return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _rejection(code: ErrorCode, context: Context) -> AddOffsetsToTxnResponse:
    if code == ErrorCode.PRODUCER_FENCED and context.version < _FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)
