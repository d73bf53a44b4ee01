"""AddPartitionsToTxn: versions 0 to 5.

Clients add partitions to one transaction, up to version 3. Brokers add partitions to any number of
transactions, or verify that partitions are part of them (`verify_only`). If one partition does not
exist, or a client may not write to its topic, or names a partition of an internal topic, no
partition is added, and the others get OPERATION_NOT_ATTEMPTED. A fenced producer gets
INVALID_PRODUCER_EPOCH up to version 1, and PRODUCER_FENCED from version 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import CombinedReply
from millstream.broker.topic import is_internal
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.transactions.end_wait import EndWait
from millstream.transactions.state import BUMPING_VERSION
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TxnTopic,
    TxnTopicResult,
)

_Transaction = AddPartitionsToTxnRequest.Transaction
_Codes = dict[TopicPartition, ErrorCode]
BATCHED_SINCE = 4
_FENCED_SINCE = 2


def handle(request: AddPartitionsToTxnRequest, context: Context) -> Reply[Any]:
    if context.version >= BATCHED_SINCE:
        context.require_cluster(Operation.CLUSTER_ACTION)
    response = AddPartitionsToTxnResponse()
    combined = CombinedReply(ReplyKind.ADD_PARTITIONS_TO_TXN, context, response)
    if context.version < BATCHED_SINCE:
        only = _Transaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        rows = response.results_by_topic_v3_and_below
        if not context.allows(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, only.transactional_id
        ):
            reject_transaction(only, rows, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return combined.finish()
        add_to_transaction(only, context.version, rows, combined)
    for transaction in request.transactions:
        row = AddPartitionsToTxnResponse.Transaction(transactional_id=transaction.transactional_id)
        response.results_by_transaction.append(row)
        add_to_transaction(transaction, context.version, row.topic_results, combined)
    return combined.finish()


API: Final = ApiEntry(
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    versions=(0, 5),
    handle=handle,
    access=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "up to version 3"),
        Right(Operation.WRITE, ResourceType.TOPIC, "up to version 3"),
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "from version 4, which brokers send"),
    ),
)


def add_to_transaction(
    transaction: _Transaction,
    version: int,
    rows: list[TxnTopicResult],
    combined: CombinedReply,
    end_wait: EndWait | None = None,
) -> None:
    """Add partitions to one transaction, or verify them, and fill the rows once that is committed.

    With `end_wait` the request waits while the transaction is ending.
    """
    context = combined.context
    partitions = [
        TopicPartition(topic.name, number)
        for topic in transaction.topics
        for number in topic.partitions
    ]
    rejected = _rejected(partitions, version, context)
    if rejected:
        codes = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | rejected
        _fill(rows, transaction.topics, codes)
        return

    def respond(codes: _Codes | None) -> None:
        _fill(rows, transaction.topics, codes or dict.fromkeys(partitions, ErrorCode.NONE))

    def reject(code: ErrorCode) -> None:
        _fill(rows, transaction.topics, dict.fromkeys(partitions, _client_code(code, version)))

    reply: Reply[Any] = combined.part(respond, reject)
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    transactions, transactional_id = context.services.transactions, transaction.transactional_id
    if transaction.verify_only:
        transactions.verify_partitions(transactional_id, producer, partitions, reply)
        return
    bumping = BUMPING_VERSION if version >= BATCHED_SINCE else 0
    add = partial(
        transactions.add_partitions, transactional_id, producer, partitions, bumping, reply
    )
    if end_wait is None:
        add()
    else:
        end_wait.add(transactional_id, reply, add)


def reject_transaction(
    transaction: _Transaction, rows: list[TxnTopicResult], code: ErrorCode
) -> None:
    """Fill the rows of one transaction with the same error for every partition."""
    codes = {
        TopicPartition(topic.name, number): code
        for topic in transaction.topics
        for number in topic.partitions
    }
    _fill(rows, transaction.topics, codes)


def _rejected(partitions: Sequence[TopicPartition], version: int, context: Context) -> _Codes:
    image = context.services.catalog.image
    is_client = version < BATCHED_SINCE
    codes: _Codes = {}
    for each in partitions:
        topic = image.topic(each.topic)
        if (is_client and is_internal(each.topic)) or (
            is_client and not context.allows(Operation.WRITE, ResourceType.TOPIC, each.topic)
        ):
            codes[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= each.partition < len(topic.partitions):
            codes[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def _fill(rows: list[TxnTopicResult], topics: Sequence[TxnTopic], codes: _Codes) -> None:
    rows += [
        TxnTopicResult(
            name=topic.name,
            results_by_partition=[
                TxnTopicResult.Partition(
                    partition_index=number,
                    partition_error_code=codes[TopicPartition(topic.name, number)],
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def _client_code(code: ErrorCode, version: int) -> ErrorCode:
    if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
