"""DescribeGroups: versions 0 to 6. State and members of classic groups.

A group that does not exist or is not a classic group is described as dead, from version 6 with
GROUP_ID_NOT_FOUND. From version 3 a client may ask for its authorized operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.groups.classic.classic_description import describe_classic_group
from millstream.groups.classic.classic_group import ClassicGroup
from millstream.groups.classic.classic_state import ClassicState
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_Group = DescribeGroupsResponse.Group
_NOT_FOUND_SINCE = 6


def handle(request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse:
    rows = [_describe(group_id, context) for group_id in request.groups]
    if request.include_authorized_operations:
        add_authorized_operations(rows, context)
    return DescribeGroupsResponse(groups=rows)


API: Final = ApiEntry(
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    versions=(0, 6),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.GROUP),),
)


class _GroupRow(Protocol):
    """A described group in a response."""

    error_code: int
    group_id: str
    authorized_operations: int


def add_authorized_operations(rows: Iterable[_GroupRow], context: Context) -> None:
    """Add to each group without an error what the client may do with it."""
    for row in rows:
        if not row.error_code:
            row.authorized_operations = context.authorized_operations(
                ResourceType.GROUP, row.group_id
            )


def _describe(group_id: str, context: Context) -> _Group:
    if not context.allows(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _Group(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        group = context.services.groups.find(group_id)
    except BrokerError as error:
        return _Group(group_id=group_id, error_code=error.code)
    if isinstance(group, ClassicGroup):
        return describe_classic_group(group)
    row = _Group(group_id=group_id, group_state=ClassicState.DEAD.value)
    if context.version >= _NOT_FOUND_SINCE:
        row.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        row.error_message = (
            f"there is no group {group_id[:80]!r}"
            if group is None
            else f"group {group_id[:80]!r} is not a classic group"
        )
    return row
