"""SyncGroup: versions 0 to 5. A follower's is answered when the leader has sent the assignment."""

from __future__ import annotations

from millstream.broker.answer import Answer, ask
from millstream.broker.context import Context
from millstream.model.error import ErrorCode
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_PROTOCOL_SINCE = 5


def handle(request: SyncGroupRequest, context: Context) -> Answer:
    if context.version >= _PROTOCOL_SINCE and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return ask(
        lambda ticket: context.services.groups.sync(request, ticket),
        lambda code: SyncGroupResponse(error_code=code),
    )
