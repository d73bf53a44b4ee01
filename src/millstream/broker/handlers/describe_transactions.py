"""DescribeTransactions: version 0. Describes transactional ids that this broker coordinates.

A transaction that is ending shows only the partitions without a marker. A prepared transaction that
its producer kept open shows the producer that may end it. Topics that the client may not describe
are left out.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)

_Row = DescribeTransactionsResponse.State


def handle(request: DescribeTransactionsRequest, context: Context) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(each, context) for each in request.transactional_ids]
    )


API: Final = ApiEntry(
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    versions=(0, 0),
    handle=handle,
    access=(
        Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.DESCRIBE, ResourceType.TOPIC, "to see a topic of the transaction"),
    ),
)


def _describe(transactional_id: str, context: Context) -> _Row:
    row = _Row(transactional_id=transactional_id)
    if not context.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        row.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return row
    try:
        found = context.services.transactions.describe(transactional_id)
    except BrokerError as error:
        row.error_code = error.code
        return row
    row.transaction_state = found.state.label
    row.transaction_timeout_ms = found.timeout_ms
    row.transaction_start_time_ms = found.start_ms
    row.producer_id, row.producer_epoch = found.current
    topics: dict[str, _Row.Topic] = {}
    for topic, number in sorted(found.partitions):
        if not context.shows(Operation.DESCRIBE, ResourceType.TOPIC, topic):
            continue
        if topic not in topics:
            topics[topic] = _Row.Topic(topic=topic)
        topics[topic].partitions.append(number)
    row.topics = list(topics.values())
    return row
