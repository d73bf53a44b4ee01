"""LeaveGroup: versions 0 to 5.

From version 3 a request names any number of members, each with a result of its own, and static
members may be named by their instance id alone. Before, one member leaves, and its result is the
error code of the response.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import start_reply
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

_BATCHED_SINCE = 3


def handle(request: LeaveGroupRequest, context: Context) -> Reply[LeaveGroupResponse]:
    context.require(Operation.READ, ResourceType.GROUP, request.group_id)
    is_batched = context.version >= _BATCHED_SINCE
    only = [LeaveGroupRequest.Member(member_id=request.member_id)]
    members = request.members if is_batched else only
    return start_reply(
        ReplyKind.LEAVE_GROUP,
        context,
        lambda reply: context.services.groups.leave(request.group_id, members, reply),
        _reject,
        None if is_batched else _flatten,
    )


API: Final = ApiEntry(
    LeaveGroupRequest,
    LeaveGroupResponse,
    versions=(0, 5),
    handle=handle,
    audit=change.members_removed,
    access=(Right(Operation.READ, ResourceType.GROUP),),
)


def _reject(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


def _flatten(response: LeaveGroupResponse) -> LeaveGroupResponse:
    code = response.error_code
    if response.members:
        code = response.members[0].error_code
    return LeaveGroupResponse(error_code=code)
