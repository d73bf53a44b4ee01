"""ListOffsets: versions 1 to 11.

Finds the first record at or after a timestamp, or the offset of a special timestamp: latest (the
high watermark; with isolation level 1, `read_committed`, the last stable offset; for a replica the
log end offset), earliest, the record with the largest timestamp, or earliest local, which equals
earliest because nothing is tiered. The special timestamps of tiered storage find nothing.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_EPOCH, NO_REPLICA
from millstream.replication.partition import Partition
from millstream.wire.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

#: By special timestamp, the first version that allows it.
_WORDS_SINCE = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED = 1
_EPOCHS_SINCE = 4
_Row = ListOffsetsResponse.Topic.Partition


def handle(request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.Topic(
                name=topic.name,
                partitions=_find_all(topic, request, context),
            )
            for topic in request.topics
        ]
    )


API: Final = ApiEntry(
    ListOffsetsRequest,
    ListOffsetsResponse,
    versions=(1, 11),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.TOPIC),),
)


def _find_all(
    topic: ListOffsetsRequest.Topic, request: ListOffsetsRequest, context: Context
) -> list[_Row]:
    if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        return [_find(topic.name, wanted, request, context) for wanted in topic.partitions]
    return [
        _Row(
            partition_index=wanted.partition_index,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
        for wanted in topic.partitions
    ]


def _find(
    topic: str,
    wanted: ListOffsetsRequest.Topic.Partition,
    request: ListOffsetsRequest,
    context: Context,
) -> _Row:
    row = _Row(partition_index=wanted.partition_index)
    try:
        partition = context.services.replicas.find(topic, wanted.partition_index)
        partition.check_leader(wanted.current_leader_epoch)
        if context.version < _WORDS_SINCE.get(wanted.timestamp, 0):
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
        is_end = wanted.timestamp in (LATEST, MAX_TIMESTAMP)
        if is_end and request.replica_id == NO_REPLICA and partition.is_end_uncertain:
            # A client must not see the end offset move back, so it retries.
            raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE)
        _look_up(partition, wanted.timestamp, row, _end_offset(partition, request))
    except BrokerError as error:
        row.error_code = error.code
        context.services.metrics.api("ListOffsets").errors[error.code] += 1
    if context.version < _EPOCHS_SINCE:
        row.leader_epoch = NO_EPOCH
    return row


def _end_offset(partition: Partition, request: ListOffsetsRequest) -> int:
    """Return the end offset that the client may see."""
    if request.replica_id != NO_REPLICA:
        return partition.log.log_end_offset
    if request.isolation_level == _READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


def _look_up(partition: Partition, timestamp: int, row: _Row, end_offset: int) -> None:
    log = partition.log
    if timestamp == LATEST:
        row.offset = end_offset
        row.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        row.offset = log.log_start_offset
        row.leader_epoch = log.epochs.epoch_at(log.log_start_offset)
    elif timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
        if found is not None and found[1] < end_offset:
            row.timestamp, row.offset, row.leader_epoch = found
    elif timestamp >= 0:
        found = log.find_by_timestamp(timestamp)
        if found is not None and found[1] < end_offset:
            row.timestamp, row.offset, row.leader_epoch = found
