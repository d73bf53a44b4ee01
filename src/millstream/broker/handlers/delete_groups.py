"""DeleteGroups: versions 0 to 2. Deletes groups without members, and their committed offsets."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.reply import CombinedReply
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

_Row = DeleteGroupsResponse.Result


def handle(request: DeleteGroupsRequest, context: Context) -> Reply[Any]:
    response = DeleteGroupsResponse()
    combined = CombinedReply(ReplyKind.DELETE_GROUPS, context, response)
    for group_id in dict.fromkeys(request.groups_names):
        row = _Row(group_id=group_id)
        response.results.append(row)
        if not context.allows(Operation.DELETE, ResourceType.GROUP, group_id):
            row.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            continue
        reply: Reply[None] = combined.part(None, partial(_reject, row))
        context.services.groups.delete_group(group_id, reply)
    return combined.finish()


API: Final = ApiEntry(
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    versions=(0, 2),
    handle=handle,
    audit=change.groups_deleted,
    access=(Right(Operation.DELETE, ResourceType.GROUP),),
)


def _reject(row: _Row, code: ErrorCode) -> None:
    row.error_code = code
