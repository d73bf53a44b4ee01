"""JoinGroup: joins a classic group, or its next generation.

The `protocols` of the request are the assignors that the member supports, in order of preference,
with opaque metadata (see `consumer_protocol`). Version 0 has no rebalance timeout: the session
timeout replaces it. Before version 7 the protocol name of a response cannot be None: an error
response has an empty name.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int16, int32, nullable_string, octets, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.JOIN_GROUP, versions=(0, 9))
class JoinGroupRequest(Message):
    @struct
    class Protocol:
        name: str = string()
        metadata: bytes = octets()

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = nullable_string(since=5)
    protocol_type: str = string()
    protocols: list[Protocol] = array(Protocol)
    reason: str | None = nullable_string(since=8, ignorable=True)


@message(ApiKey.JOIN_GROUP, versions=(0, 9))
class JoinGroupResponse(Message):
    @struct
    class Member:
        member_id: str = string()
        group_instance_id: str | None = nullable_string(since=5, ignorable=True)
        metadata: bytes = octets()

    throttle_time_ms: int = int32(since=2, ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = nullable_string(since=7, ignorable=True)
    protocol_name: str | None = nullable_string(nullable_since=7, default="")
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[Member] = array(Member)
