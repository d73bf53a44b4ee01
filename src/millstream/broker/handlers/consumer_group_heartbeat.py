"""ConsumerGroupHeartbeat: versions 0 and 1.

With it a member of a consumer group (KIP-848) joins, leaves, stays alive and receives its
assignment. The first such heartbeat turns a classic group of consumers into a consumer group, if
`group.consumer.migration.policy` allows. UNSUPPORTED_VERSION while the feature `group.version` is
at level 0. A topic pattern matches only topics that the client may describe.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from millstream.broker import feature
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import caller_of, start_reply
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def handle(
    request: ConsumerGroupHeartbeatRequest, context: Context
) -> ConsumerGroupHeartbeatResponse | Reply[ConsumerGroupHeartbeatResponse]:
    if not feature.is_consumer_protocol_on(context.services):
        return _reject(ErrorCode.UNSUPPORTED_VERSION)
    context.require(Operation.READ, ResourceType.GROUP, request.group_id)
    for topic in dict.fromkeys(request.subscribed_topic_names or ()):
        context.require(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    groups = context.services.groups
    is_visible = None
    if context.services.authorizer is not None:
        is_visible = partial(context.shows, Operation.DESCRIBE, ResourceType.TOPIC)
    return start_reply(
        ReplyKind.CONSUMER_GROUP_HEARTBEAT,
        context,
        lambda reply: groups.consumer_heartbeat(request, caller_of(context), reply, is_visible),
        _reject,
    )


API: Final = ApiEntry(
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    versions=(0, 1),
    handle=handle,
    access=(
        Right(Operation.READ, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC, "for each subscribed topic"),
    ),
)


def _reject(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code)
