"""DeleteRecords: versions 0 to 2.

Advances the log start offset of a partition; offset -1 means the high watermark. The response is
sent when the new log start offset is on the leader's disk and every in-sync replica has applied it,
or when the request times out. Segments below it are deleted in the background.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import error_rows
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.replication.partition import Partition
from millstream.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse

_Row = DeleteRecordsResponse.Topic.Partition


async def handle(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    waiting: list[tuple[_Row, Partition, int]] = []
    for topic in request.topics:
        rows = []
        is_allowed = context.allows(Operation.DELETE, ResourceType.TOPIC, topic.name)
        for wanted in topic.partitions:
            row = _Row(partition_index=wanted.partition_index, low_watermark=-1)
            rows.append(row)
            if not is_allowed:
                row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            try:
                partition = context.services.replicas.find(topic.name, wanted.partition_index)
                partition.check_leader()
                waiting.append((row, partition, partition.delete_records(wanted.offset)))
            except BrokerError as error:
                row.error_code = error.code
        response.topics.append(DeleteRecordsResponse.Topic(name=topic.name, partitions=rows))
    if waiting:
        await context.services.checkpoint()
    try:
        async with asyncio.timeout(max(request.timeout_ms, 0) / 1000):
            for _, partition, offset in waiting:
                await _trimmed(partition, offset)
    except TimeoutError:
        pass  # Each row gets its result below.
    for row, partition, offset in waiting:
        _set_result(row, partition, offset)
    return response


def _error_response(
    request: DeleteRecordsRequest, context: Context, code: ErrorCode
) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    for topic in request.topics:
        rows = error_rows(
            _Row, topic.partitions, ["partition_index"], low_watermark=-1, error_code=code
        )
        response.topics.append(DeleteRecordsResponse.Topic(name=topic.name, partitions=rows))
    return response


API: Final = ApiEntry(
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    versions=(0, 2),
    handle=handle,
    audit=change.records_deleted,
    error_response=_error_response,
    access=(Right(Operation.DELETE, ResourceType.TOPIC),),
)


async def _trimmed(partition: Partition, offset: int) -> None:
    """Return once all in-sync replicas start at `offset`, or this broker is not the leader."""
    if partition.low_watermark >= offset:
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.when_trimmed(offset, lambda: None if done.done() else done.set_result(None))
    await done


def _set_result(row: _Row, partition: Partition, offset: int) -> None:
    if not partition.is_leader:
        row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return
    row.low_watermark = partition.low_watermark
    if row.low_watermark < offset:
        row.error_code = ErrorCode.REQUEST_TIMED_OUT
