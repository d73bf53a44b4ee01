"""ConsumerGroupHeartbeat: versions 0 and 1.

How a member of a consumer group (KIP-848) joins, leaves, goes on, and learns what it is assigned.
A classic group of consumers becomes a consumer group with the first such heartbeat, as
`group.consumer.migration.policy` allows. UNSUPPORTED_VERSION while the feature `group.version` is
at level 0.
"""

from __future__ import annotations

from typing import Final

from millstream.broker import feature
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.reply import ask, caller_of
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
        return _refuse(ErrorCode.UNSUPPORTED_VERSION)
    groups = context.services.groups
    return ask(
        ReplyKind.CONSUMER_GROUP_HEARTBEAT,
        context,
        lambda reply: groups.consumer_heartbeat(request, caller_of(context), reply),
        _refuse,
    )


API: Final = ApiEntry(
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, versions=(0, 1), handle=handle
)


def _refuse(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code)
