"""AlterPartitionReassignments: versions 0 and 1. Any broker executes it, by compare-and-swap.

Null replicas cancel a reassignment. The controller completes a reassignment once the new replicas
are in sync. The plan is part of the partition's record, so a restart of a broker does not affect
it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.controller import reassignment
from millstream.metadata.cluster_record import PartitionRecord
from millstream.metadata.partition_change import alter_partition
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

_Wanted = AlterPartitionReassignmentsRequest.Topic.Partition
_Row = AlterPartitionReassignmentsResponse.Topic.Partition


async def handle(
    request: AlterPartitionReassignmentsRequest, context: Context
) -> AlterPartitionReassignmentsResponse:
    context.require_cluster(Operation.ALTER)
    may_resize = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_resize)
    for topic in request.topics:
        rows = await asyncio.gather(
            *(_alter(topic.name, wanted, context, may_resize) for wanted in topic.partitions)
        )
        response.responses.append(
            AlterPartitionReassignmentsResponse.Topic(name=topic.name, partitions=list(rows))
        )
    return response


API: Final = ApiEntry(
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    versions=(0, 1),
    handle=handle,
    audit=change.partitions_reassigned,
    access=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)


async def _alter(topic: str, wanted: _Wanted, context: Context, may_resize: bool) -> _Row:
    catalog = context.services.catalog

    def decide(record: PartitionRecord) -> PartitionRecord | None:
        if wanted.replicas is None:
            return reassignment.cancel(record)
        if not may_resize and len(wanted.replicas) != len(record.replicas) - len(record.adding):
            raise BrokerError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{len(wanted.replicas)} replicas would change the replication factor, which the"
                " request does not allow",
            )
        return reassignment.begin(record, wanted.replicas, catalog.image.eligible)

    row = _Row(partition_index=wanted.partition_index)
    try:
        await alter_partition(catalog, topic, wanted.partition_index, decide)
    except BrokerError as error:
        row.error_code, row.error_message = error.code, error.message
    return row
