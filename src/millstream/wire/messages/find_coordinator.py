"""FindCoordinator: the broker that coordinates a group or a transactional id.

One key up to version 3, any number of keys from version 4.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int8, int16, int32, nullable_string, string, string_array
from millstream.wire.schema import Message, message, struct


@message(ApiKey.FIND_COORDINATOR, versions=(0, 6))
class FindCoordinatorRequest(Message):
    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = string_array(since=4)


@message(ApiKey.FIND_COORDINATOR, versions=(0, 6))
class FindCoordinatorResponse(Message):
    @struct
    class Coordinator:
        key: str = string()
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        error_code: int = int16()
        error_message: str | None = nullable_string(ignorable=True)

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16(until=3)
    error_message: str | None = nullable_string(since=1, until=3, ignorable=True)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)
