"""ConsumerGroupDescribe: versions 0 and 1. State, members and assignments of consumer groups.

GROUP_ID_NOT_FOUND if the group does not exist or is not a consumer group, and UNSUPPORTED_VERSION
while the feature `group.version` is at level 0. There is no authorization, so authorized operations
are never set.
"""

from __future__ import annotations

from typing import Final

from millstream.broker import feature
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.groups.consumer.consumer_description import describe_consumer_group
from millstream.groups.consumer.consumer_group import ConsumerGroup
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

_Group = ConsumerGroupDescribeResponse.Group


def handle(
    request: ConsumerGroupDescribeRequest, context: Context
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[_describe(group_id, context) for group_id in request.group_ids]
    )


API: Final = ApiEntry(
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, versions=(0, 1), handle=handle
)


def _describe(group_id: str, context: Context) -> _Group:
    groups = context.services.groups
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
    return describe_consumer_group(group, groups.shards.topics)
