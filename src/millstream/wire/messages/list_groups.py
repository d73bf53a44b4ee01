"""ListGroups: the groups of one coordinator; an empty filter matches all states or types."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, string, string_array
from millstream.wire.schema import Message, message, struct


@message(ApiKey.LIST_GROUPS, versions=(0, 5))
class ListGroupsRequest(Message):
    states_filter: list[str] = string_array(since=4)
    types_filter: list[str] = string_array(since=5)


@message(ApiKey.LIST_GROUPS, versions=(0, 5))
class ListGroupsResponse(Message):
    @struct
    class Group:
        group_id: str = string()
        protocol_type: str = string()
        group_state: str = string(since=4, ignorable=True)
        group_type: str = string(since=5, ignorable=True)

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[Group] = array(Group)
