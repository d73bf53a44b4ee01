"""SyncGroup: versions 0 to 5. A member waits until the group's leader has sent the assignment."""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import start_reply
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_PROTOCOL_SINCE = 5


def handle(
    request: SyncGroupRequest, context: Context
) -> SyncGroupResponse | Reply[SyncGroupResponse]:
    if context.version >= _PROTOCOL_SINCE and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    context.require(Operation.READ, ResourceType.GROUP, request.group_id)
    return start_reply(
        ReplyKind.SYNC_GROUP,
        context,
        lambda reply: context.services.groups.sync(request, reply),
        lambda code: SyncGroupResponse(error_code=code),
    )


API: Final = ApiEntry(
    SyncGroupRequest,
    SyncGroupResponse,
    versions=(0, 5),
    handle=handle,
    access=(Right(Operation.READ, ResourceType.GROUP),),
)
