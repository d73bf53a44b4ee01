"""DeleteAcls: deletes the ACLs that filters match; the results are in the order of the request."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int8, int16, int32, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DELETE_ACLS, versions=(1, 3))
class DeleteAclsRequest(Message):
    @struct
    class Filter:
        resource_type_filter: int = int8()
        resource_name_filter: str | None = nullable_string()
        pattern_type_filter: int = int8(since=1, default=3)
        principal_filter: str | None = nullable_string()
        host_filter: str | None = nullable_string()
        operation: int = int8()
        permission_type: int = int8()

    filters: list[Filter] = array(Filter)


@message(ApiKey.DELETE_ACLS, versions=(1, 3))
class DeleteAclsResponse(Message):
    @struct
    class Result:
        @struct
        class MatchingAcl:
            error_code: int = int16()
            error_message: str | None = nullable_string()
            resource_type: int = int8()
            resource_name: str = string()
            pattern_type: int = int8(since=1, default=3)
            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        error_code: int = int16()
        error_message: str | None = nullable_string()
        matching_acls: list[MatchingAcl] = array(MatchingAcl)

    throttle_time_ms: int = int32()
    filter_results: list[Result] = array(Result)
