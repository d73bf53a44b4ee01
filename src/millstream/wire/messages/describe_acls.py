"""DescribeAcls: the ACLs that a filter matches."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int8, int16, int32, nullable_string, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_ACLS, versions=(1, 3))
class DescribeAclsRequest(Message):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = nullable_string()
    pattern_type_filter: int = int8(since=1, default=3)
    principal_filter: str | None = nullable_string()
    host_filter: str | None = nullable_string()
    operation: int = int8()
    permission_type: int = int8()


@message(ApiKey.DESCRIBE_ACLS, versions=(1, 3))
class DescribeAclsResponse(Message):
    @struct
    class Resource:
        @struct
        class Acl:
            principal: str = string()
            host: str = string()
            operation: int = int8()
            permission_type: int = int8()

        resource_type: int = int8()
        resource_name: str = string()
        pattern_type: int = int8(since=1, default=3)
        acls: list[Acl] = array(Acl)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    resources: list[Resource] = array(Resource)
