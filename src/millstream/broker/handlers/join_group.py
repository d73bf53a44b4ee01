"""JoinGroup: versions 0 to 9.

The response is sent when the group's next generation is complete, or at once if there is nothing to
wait for. From version 4 a new member first gets an id (MEMBER_ID_REQUIRED). From version 5 members
may be static. From version 9 the response to a static leader that rejoins says whether it skips the
assignment.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import caller_of, start_reply
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

_PROTOCOL_NAME_NULLABLE_SINCE = 7


def handle(
    request: JoinGroupRequest, context: Context
) -> JoinGroupResponse | Reply[JoinGroupResponse]:
    version = context.version

    def respond(response: JoinGroupResponse) -> JoinGroupResponse:
        if version < _PROTOCOL_NAME_NULLABLE_SINCE:
            response.protocol_name = response.protocol_name or ""
        return response

    def reject(code: ErrorCode) -> JoinGroupResponse:
        return respond(JoinGroupResponse(error_code=code, member_id=request.member_id))

    if not context.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return reject(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return start_reply(
        ReplyKind.JOIN_GROUP,
        context,
        lambda reply: context.services.groups.join(request, caller_of(context), reply),
        reject,
        respond,
    )


API: Final = ApiEntry(
    JoinGroupRequest,
    JoinGroupResponse,
    versions=(0, 9),
    handle=handle,
    access=(Right(Operation.READ, ResourceType.GROUP),),
)
