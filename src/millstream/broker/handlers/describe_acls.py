"""DescribeAcls: versions 1 to 3. Lists the ACLs that a filter matches.

SECURITY_DISABLED if there is no authorizer. INVALID_REQUEST for a filter with unknown types or
operations.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import failure_message
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.security.acl.acl_filter import AclFilter
from millstream.wire.messages.delete_acls import DeleteAclsRequest
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER = "No Authorizer is configured."

_Resource = DescribeAclsResponse.Resource


def handle(request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
    context.require_cluster(Operation.DESCRIBE)
    if context.services.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
    wanted = filter_of(request)
    problem = wanted.problem
    if problem is not None:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
    return DescribeAclsResponse(
        resources=[
            _Resource(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                pattern_type=resource.pattern_type,
                acls=[
                    _Resource.Acl(
                        principal=entry.principal,
                        host=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission,
                    )
                    for entry in entries
                ],
            )
            for resource, entries in wanted.select(context.services.catalog.image.acls)
        ]
    )


API: Final = ApiEntry(
    DescribeAclsRequest,
    DescribeAclsResponse,
    versions=(1, 3),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)


def filter_of(wanted: DescribeAclsRequest | DeleteAclsRequest.Filter) -> AclFilter:
    """Return the filter in a request."""
    return AclFilter(
        wanted.resource_type_filter,
        wanted.resource_name_filter,
        wanted.pattern_type_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )


def rejection_message(code: ErrorCode) -> str:
    """Return the error message of a response that rejects a whole request about ACLs."""
    return NO_AUTHORIZER if code == ErrorCode.SECURITY_DISABLED else failure_message(code)
