"""ListPartitionReassignments: version 0. Read from the image of the metadata."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.controller import reassignment
from millstream.metadata.cluster_record import TopicRecord
from millstream.model.acl import Operation, ResourceType
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_Topic = ListPartitionReassignmentsResponse.Topic


def handle(
    request: ListPartitionReassignmentsRequest, context: Context
) -> ListPartitionReassignmentsResponse:
    context.require_cluster(Operation.DESCRIBE)
    image = context.services.catalog.image
    response = ListPartitionReassignmentsResponse()
    if request.topics is None:
        rows = [
            _in_progress(topic, range(len(topic.partitions))) for topic in image.topics.values()
        ]
    else:
        rows = [
            _in_progress(found, frozenset(topic.partition_indexes))
            for topic in request.topics
            if (found := image.topic(topic.name)) is not None
        ]
    response.topics = [row for row in rows if row.partitions]
    return response


API: Final = ApiEntry(
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    versions=(0, 0),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)


def _in_progress(topic: TopicRecord, numbers: Container[int]) -> _Topic:
    return _Topic(
        name=topic.name,
        partitions=[
            _Topic.Partition(
                partition_index=number,
                replicas=list(record.replicas),
                adding_replicas=list(record.adding),
                removing_replicas=list(record.removing),
            )
            for number, record in enumerate(topic.partitions)
            if number in numbers and reassignment.is_in_progress(record)
        ],
    )
