"""Heartbeat: keeps a member of a classic group alive, and tells it whether to rejoin."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import int16, int32, nullable_string, string
from millstream.wire.schema import Message, message


@message(ApiKey.HEARTBEAT, versions=(0, 4))
class HeartbeatRequest(Message):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = nullable_string(since=3)


@message(ApiKey.HEARTBEAT, versions=(0, 4))
class HeartbeatResponse(Message):
    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
