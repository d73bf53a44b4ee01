"""ConsumerGroupHeartbeat: versions 0 and 1.

With it a member of a consumer group (KIP-848) joins, leaves, stays alive and receives its
assignment. The first such heartbeat turns a classic group of consumers into a consumer group, if
`group.consumer.migration.policy` allows. UNSUPPORTED_VERSION while the feature `group.version` is
at level 0.
"""

from __future__ import annotations

from typing import Final

from millstream.broker import feature
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.reply import caller_of, start_reply
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
    groups = context.services.groups
    return start_reply(
        ReplyKind.CONSUMER_GROUP_HEARTBEAT,
        context,
        lambda reply: groups.consumer_heartbeat(request, caller_of(context), reply),
        _reject,
    )


API: Final = ApiEntry(
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, versions=(0, 1), handle=handle
)


def _reject(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code)
