"""ListGroups: versions 0 to 5.

Lists the groups of this coordinator, from version 4 filtered by state, from version 5 also by type;
both filters ignore case. Groups that the client may not describe are left out, unless it may
describe the cluster. COORDINATOR_LOAD_IN_PROGRESS while some groups are being loaded.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import CLUSTER_NAME, Operation, ResourceType
from millstream.model.error import BrokerError
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse


def handle(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    states = {state.lower() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
    response = ListGroupsResponse()
    shows_all = context.shows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    try:
        for group in context.services.groups.shards.all_groups():
            if states and group.state_name.lower() not in states:
                continue
            if kinds and group.kind.value not in kinds:
                continue
            if not shows_all and not context.shows(
                Operation.DESCRIBE, ResourceType.GROUP, group.group_id
            ):
                continue
            response.groups.append(
                ListGroupsResponse.Group(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state_name,
                    group_type=group.kind.value,
                )
            )
    except BrokerError as error:
        return ListGroupsResponse(error_code=error.code)
    return response


API: Final = ApiEntry(
    ListGroupsRequest,
    ListGroupsResponse,
    versions=(0, 5),
    handle=handle,
    access=(
        Right(Operation.DESCRIBE, ResourceType.CLUSTER, "to see all groups"),
        Right(Operation.DESCRIBE, ResourceType.GROUP, "to see a group"),
    ),
)
