"""DescribeProducers: version 0. The producer state of a partition, from its leader.

Each producer has the epoch of the coordinator that ended its last transaction, and the first offset
of its open transaction. With these an operator finds a hanging transaction.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import DENIAL_MESSAGE
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)

_Row = DescribeProducersResponse.Topic.Partition


def handle(request: DescribeProducersRequest, context: Context) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.Topic(
                name=topic.name,
                partitions=_describe_all(topic, context),
            )
            for topic in request.topics
        ]
    )


API: Final = ApiEntry(
    DescribeProducersRequest,
    DescribeProducersResponse,
    versions=(0, 0),
    handle=handle,
    access=(Right(Operation.READ, ResourceType.TOPIC),),
)


def _describe_all(topic: DescribeProducersRequest.Topic, context: Context) -> list[_Row]:
    if context.allows(Operation.READ, ResourceType.TOPIC, topic.name):
        return [_describe(topic.name, number, context) for number in topic.partition_indexes]
    return [
        _Row(
            partition_index=number,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message=DENIAL_MESSAGE,
        )
        for number in topic.partition_indexes
    ]


def _describe(topic: str, number: int, context: Context) -> _Row:
    row = _Row(partition_index=number)
    try:
        partition = context.services.replicas.find(topic, number)
        partition.check_leader()
    except BrokerError as error:
        row.error_code, row.error_message = error.code, error.message
        return row
    row.active_producers = [
        _Row.Producer(
            producer_id=each.producer_id,
            producer_epoch=each.epoch,
            last_sequence=each.last_sequence,
            last_timestamp=each.last_timestamp,
            coordinator_epoch=each.coordinator_epoch,
            current_txn_start_offset=each.transaction_start,
        )
        for each in partition.log.producer_state.entries.values()
    ]
    return row
