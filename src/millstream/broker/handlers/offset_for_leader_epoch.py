"""OffsetForLeaderEpoch: versions 2 to 4.

Returns the end offset of a leader epoch (KIP-101, KIP-279), from which a reader learns that its
offset was truncated under another leader.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

_Row = OffsetForLeaderEpochResponse.Topic.Partition


def handle(request: OffsetForLeaderEpochRequest, context: Context) -> OffsetForLeaderEpochResponse:
    is_broker = context.holds_cluster(Operation.CLUSTER_ACTION)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.Topic(
                topic=topic.topic,
                partitions=_find_all(topic, context, is_broker=is_broker),
            )
            for topic in request.topics
        ]
    )


API: Final = ApiEntry(
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    versions=(2, 4),
    handle=handle,
    access=(
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "by brokers"),
        Right(Operation.DESCRIBE, ResourceType.TOPIC, "without ClusterAction"),
    ),
)


def _find_all(
    topic: OffsetForLeaderEpochRequest.Topic, context: Context, *, is_broker: bool
) -> list[_Row]:
    if is_broker or context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic):
        return [_find(topic.topic, wanted, context) for wanted in topic.partitions]
    return [
        _Row(partition=wanted.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for wanted in topic.partitions
    ]


def _find(
    topic: str, wanted: OffsetForLeaderEpochRequest.Topic.Partition, context: Context
) -> _Row:
    row = _Row(partition=wanted.partition)
    try:
        partition = context.services.replicas.find(topic, wanted.partition)
        partition.check_leader(wanted.current_leader_epoch)
        row.leader_epoch, row.end_offset = partition.log.epoch_end_offset(wanted.leader_epoch)
    except BrokerError as error:
        row.error_code = error.code
    return row
