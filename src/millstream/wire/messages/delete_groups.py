"""DeleteGroups: deletes groups without members, and their committed offsets."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, string, string_array
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DELETE_GROUPS, versions=(0, 2))
class DeleteGroupsRequest(Message):
    groups_names: list[str] = string_array()


@message(ApiKey.DELETE_GROUPS, versions=(0, 2))
class DeleteGroupsResponse(Message):
    @struct
    class Result:
        group_id: str = string()
        error_code: int = int16()

    throttle_time_ms: int = int32()
    results: list[Result] = array(Result)
