"""DescribeTopicPartitions: version 0.

Describes topics in the order of their names, with at most `response_partition_limit` partitions
(and never more than PARTITIONS_MAX) in a response, and a cursor to continue from. A request without
topics means all topics that the client may describe. Every topic has the client's authorized
operations.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.topic import is_internal
from millstream.metadata import replica_set
from millstream.metadata.cluster_record import TopicRecord
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)

PARTITIONS_MAX = 2000
_DESCRIBE: Final = (Operation.DESCRIBE, ResourceType.TOPIC)
_Topic = DescribeTopicPartitionsResponse.Topic


def handle(
    request: DescribeTopicPartitionsRequest, context: Context
) -> DescribeTopicPartitionsResponse:
    topics = context.services.catalog.image.topics
    wanted = {topic.name for topic in request.topics}
    names = sorted(wanted or filter(partial(context.shows, *_DESCRIBE), topics))
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first = max(request.cursor.partition_index, 0)
    remaining = max(min(request.response_partition_limit, PARTITIONS_MAX), 1)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if remaining == 0:
            response.next_cursor = _cursor(name, 0)
            break
        if wanted and not context.allows(*_DESCRIBE, name):
            response.topics.append(
                _Topic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            )
            continue
        topic = topics.get(name)
        if topic is None:
            row = _Topic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            row.topic_authorized_operations = context.authorized_operations(
                ResourceType.TOPIC, name
            )
            response.topics.append(row)
            continue
        end = min(first + remaining, len(topic.partitions))
        response.topics.append(_describe(topic, first, end, context))
        remaining -= max(end - first, 0)
        if end < len(topic.partitions):
            response.next_cursor = _cursor(name, end)
            break
        first = 0
    return response


API: Final = ApiEntry(
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    versions=(0, 0),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.TOPIC),),
)


def _cursor(name: str, partition: int) -> DescribeTopicPartitionsResponse.Cursor:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)


def _describe(topic: TopicRecord, first: int, end: int, context: Context) -> _Topic:
    image = context.services.catalog.image
    alive, directories = image.brokers, image.directories
    row = _Topic(name=topic.name, topic_id=topic.topic_id, is_internal=is_internal(topic.name))
    row.topic_authorized_operations = context.authorized_operations(ResourceType.TOPIC, topic.name)
    for number in range(first, end):
        state = topic.partitions[number]
        # A replica without its recorded disk lacks committed records and can't be elected.
        eligible = [each for each in state.elr if replica_set.has_disk(state, each, directories)]
        away = [each for each in state.elr if each not in eligible]
        row.partitions.append(
            _Topic.Partition(
                error_code=(
                    ErrorCode.LEADER_NOT_AVAILABLE if state.leader == NO_LEADER else ErrorCode.NONE
                ),
                partition_index=number,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                eligible_leader_replicas=eligible,
                last_known_elr=[*away, *state.last_known_elr],
                offline_replicas=[each for each in state.replicas if each not in alive],
            )
        )
    return row
