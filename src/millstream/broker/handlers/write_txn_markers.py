"""WriteTxnMarkers: versions 1 and 2.

Ends transactions in partitions that this broker leads: for a coordinator on another broker, or for
an operator who aborts a hanging transaction. The response is sent once the markers are committed.
Markers that take too long get REQUEST_TIMED_OUT, because responses for other partitions wait for
this one.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import CombinedReply
from millstream.coordination.effects import ProducerIdAndEpoch
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.model.topic import TopicPartition
from millstream.transactions.state import Marker
from millstream.wire.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_Topic = WriteTxnMarkersResponse.Marker.Topic

_COMMIT_S_MAX: Final = 2.0

#: Errors of the group coordinator that the sender of markers sees as a missing leader.
_NOT_READY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


def handle(request: WriteTxnMarkersRequest, context: Context) -> Reply[Any]:
    if not context.holds_cluster(Operation.ALTER):
        context.require_cluster(Operation.CLUSTER_ACTION)
    response = WriteTxnMarkersResponse()
    combined = CombinedReply(ReplyKind.WRITE_TXN_MARKERS, context, response)
    for wanted in request.markers:
        row = WriteTxnMarkersResponse.Marker(producer_id=wanted.producer_id)
        response.markers.append(row)
        producer = ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch)
        marker = Marker(producer, wanted.transaction_result, wanted.transaction_version)
        for topic in wanted.topics:
            topic_row = _Topic(name=topic.name)
            row.topics.append(topic_row)
            for number in topic.partition_indexes:
                partition_row = _Topic.Partition(partition_index=number)
                topic_row.partitions.append(partition_row)
                part: Reply[None] = combined.part(None, partial(_reject, partition_row))
                context.services.markers.send(
                    marker,
                    wanted.coordinator_epoch,
                    TopicPartition(topic.name, number),
                    part,
                )
    return combined.finish(_COMMIT_S_MAX)


def _error_response(
    request: WriteTxnMarkersRequest, context: Context, code: ErrorCode
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponse.Marker(
                producer_id=marker.producer_id,
                topics=[
                    _Topic(
                        name=topic.name,
                        partitions=[
                            _Topic.Partition(partition_index=number, error_code=code)
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


API: Final = ApiEntry(
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    versions=(1, 2),
    handle=handle,
    audit=change.transactions_ended,
    error_response=_error_response,
    access=(
        Right(Operation.ALTER, ResourceType.CLUSTER, "by operators"),
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "without Alter"),
    ),
)


def _reject(row: _Topic.Partition, code: ErrorCode) -> None:
    row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_READY else code
