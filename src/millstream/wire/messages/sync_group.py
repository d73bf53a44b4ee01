"""SyncGroup: the leader of a classic group sends the assignment, each member receives its part.

Other members send no assignments. An assignment is opaque to the protocol (see
`consumer_protocol`).
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, nullable_string, octets, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.SYNC_GROUP, versions=(0, 5))
class SyncGroupRequest(Message):
    @struct
    class Assignment:
        member_id: str = string()
        assignment: bytes = octets()

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = nullable_string(since=3)
    protocol_type: str | None = nullable_string(since=5, ignorable=True)
    protocol_name: str | None = nullable_string(since=5, ignorable=True)
    assignments: list[Assignment] = array(Assignment)


@message(ApiKey.SYNC_GROUP, versions=(0, 5))
class SyncGroupResponse(Message):
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = nullable_string(since=5, ignorable=True)
    protocol_name: str | None = nullable_string(since=5, ignorable=True)
    assignment: bytes = octets()
