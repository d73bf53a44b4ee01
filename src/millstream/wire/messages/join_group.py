"""JoinGroup: enter a classic group, or its next generation.

Each of the request's `protocols` is an assignor that the member can use, the one it likes best
first, with opaque metadata for it (see `consumer_protocol`). Without a rebalance timeout, in
version 0, the session timeout stands for it. Before version 7 the response's protocol name may
not be None: an error is answered with an empty one there.
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
