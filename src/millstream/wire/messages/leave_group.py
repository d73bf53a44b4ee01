"""LeaveGroup: one member leaves (up to version 2), or any number of members (from version 3)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.LEAVE_GROUP, versions=(0, 5))
class LeaveGroupRequest(Message):
    @struct
    class Member:
        member_id: str = string()
        group_instance_id: str | None = nullable_string()
        reason: str | None = nullable_string(since=5, ignorable=True)

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[Member] = array(Member, since=3)


@message(ApiKey.LEAVE_GROUP, versions=(0, 5))
class LeaveGroupResponse(Message):
    @struct
    class Member:
        member_id: str = string()
        group_instance_id: str | None = nullable_string()
        error_code: int = int16()

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    members: list[Member] = array(Member, since=3)
