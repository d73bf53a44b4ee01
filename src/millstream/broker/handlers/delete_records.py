"""DeleteRecords: versions 0 to 2.

Moves the start of a partition's log; offset -1 means the high watermark. The new start is on disk
when the answer leaves; files that lie wholly before it are removed in the background.
"""

from __future__ import annotations

from millstream.broker.context import Context
from millstream.model.error import BrokerError
from millstream.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse

_Row = DeleteRecordsResponse.Topic.Partition


async def handle(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.Topic(
                name=topic.name,
                partitions=[_delete(topic.name, wanted, context) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    await context.services.checkpoint()
    return response


def _delete(topic: str, wanted: DeleteRecordsRequest.Topic.Partition, context: Context) -> _Row:
    row = _Row(partition_index=wanted.partition_index, low_watermark=-1)
    try:
        partition = context.services.replicas.find(topic, wanted.partition_index)
        partition.check_leader()
        row.low_watermark = partition.delete_records(wanted.offset)
    except BrokerError as error:
        row.error_code = error.code
    return row
