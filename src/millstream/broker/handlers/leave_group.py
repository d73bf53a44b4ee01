"""LeaveGroup: versions 0 to 5.

From version 3 any number of members leave at once, each with a result of its own, and static ones
may be named by their instance id alone. Before that one leaves, and its result is the answer's.
"""

from __future__ import annotations

from millstream.broker.answer import Answer, ask
from millstream.broker.context import Context
from millstream.model.error import ErrorCode
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

_BATCHED_SINCE = 3


def handle(request: LeaveGroupRequest, context: Context) -> Answer:
    groups = context.services.groups
    if context.version >= _BATCHED_SINCE:
        return ask(lambda ticket: groups.leave(request.group_id, request.members, ticket), _refuse)
    only = [LeaveGroupRequest.Member(member_id=request.member_id)]
    return ask(lambda ticket: groups.leave(request.group_id, only, ticket), _refuse, _flatten)


def _refuse(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


def _flatten(response: LeaveGroupResponse) -> LeaveGroupResponse:
    code = response.error_code
    if response.members:
        code = response.members[0].error_code
    return LeaveGroupResponse(error_code=code)
