"""Heartbeat: versions 0 to 4. The response is immediate: NONE while the group is being loaded."""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import Operation, ResourceType
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(request: HeartbeatRequest, context: Context) -> HeartbeatResponse:
    context.require(Operation.READ, ResourceType.GROUP, request.group_id)
    code = context.services.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=code)


API: Final = ApiEntry(
    HeartbeatRequest,
    HeartbeatResponse,
    versions=(0, 4),
    handle=handle,
    access=(Right(Operation.READ, ResourceType.GROUP),),
)
