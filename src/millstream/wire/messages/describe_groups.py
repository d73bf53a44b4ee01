"""DescribeGroups: state and members of classic groups.

A group that does not exist is described as dead, without an error up to version 5. From version 6,
which has an error message, the error is GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import (
    array,
    boolean,
    int16,
    int32,
    nullable_string,
    octets,
    string,
    string_array,
)
from millstream.wire.messages.metadata import OPERATIONS_OMITTED
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_GROUPS, versions=(0, 6))
class DescribeGroupsRequest(Message):
    groups: list[str] = string_array()
    include_authorized_operations: bool = boolean(since=3)


@message(ApiKey.DESCRIBE_GROUPS, versions=(0, 6))
class DescribeGroupsResponse(Message):
    @struct
    class Group:
        @struct
        class Member:
            member_id: str = string()
            group_instance_id: str | None = nullable_string(since=4, ignorable=True)
            client_id: str = string()
            client_host: str = string()
            member_metadata: bytes = octets()
            member_assignment: bytes = octets()

        error_code: int = int16()
        error_message: str | None = nullable_string(since=6)
        group_id: str = string()
        group_state: str = string()
        protocol_type: str = string()
        protocol_data: str = string()
        members: list[Member] = array(Member)
        authorized_operations: int = int32(since=3, default=OPERATIONS_OMITTED)

    throttle_time_ms: int = int32(since=1, ignorable=True)
    groups: list[Group] = array(Group)
