"""ConsumerGroupDescribe: versions 0 and 1. State, members and assignments of consumer groups.

GROUP_ID_NOT_FOUND if the group does not exist or is not a consumer group, and UNSUPPORTED_VERSION
while the feature `group.version` is at level 0. TOPIC_AUTHORIZATION_FAILED if the assignments of a
group have a topic that the client may not describe.
"""

from __future__ import annotations

from typing import Final

from millstream.broker import feature
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.handlers.describe_groups import add_authorized_operations
from millstream.groups.consumer.consumer_description import describe_consumer_group
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

_Group = ConsumerGroupDescribeResponse.Group


def handle(
    request: ConsumerGroupDescribeRequest, context: Context
) -> ConsumerGroupDescribeResponse:
    rows = [_describe(group_id, context) for group_id in request.group_ids]
    if request.include_authorized_operations:
        add_authorized_operations(rows, context)
    return ConsumerGroupDescribeResponse(groups=rows)


API: Final = ApiEntry(
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    versions=(0, 1),
    handle=handle,
    access=(
        Right(Operation.DESCRIBE, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC, "for each assigned topic"),
    ),
)


def _describe(group_id: str, context: Context) -> _Group:
    groups = context.services.groups
    if not context.allows(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _Group(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        if not feature.is_consumer_protocol_on(context.services):
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "group.version is at level 0")
        group = groups.find(group_id)
        if not isinstance(group, ConsumerGroup):
            raise BrokerError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"there is no consumer group {group_id[:80]!r}"
                if group is None
                else f"group {group_id[:80]!r} is not a consumer group",
            )
    except BrokerError as error:
        return _Group(group_id=group_id, error_code=error.code, error_message=error.message)
    row = describe_consumer_group(group, groups.shards.topics)
    if not all(
        context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic) for topic in _topics(row)
    ):
        return _Group(
            group_id=group_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="the group has topics that the client may not describe",
        )
    return row


def _topics(row: _Group) -> set[str]:
    return {
        topic.topic_name
        for member in row.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
