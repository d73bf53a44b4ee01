"""CreateAcls: adds ACLs; the results are in the order of the request."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int8, int16, int32, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.CREATE_ACLS, versions=(1, 3))
class CreateAclsRequest(Message):
    @struct
    class Creation:
        resource_type: int = int8()
        resource_name: str = string()
        resource_pattern_type: int = int8(since=1, default=3)
        principal: str = string()
        host: str = string()
        operation: int = int8()
        permission_type: int = int8()

    creations: list[Creation] = array(Creation)


@message(ApiKey.CREATE_ACLS, versions=(1, 3))
class CreateAclsResponse(Message):
    @struct
    class Result:
        error_code: int = int16()
        error_message: str | None = nullable_string()

    throttle_time_ms: int = int32()
    results: list[Result] = array(Result)
