"""The requests of ACLs, sent by Millstream's own protocol client.

`Admin` imports this module on first use: most programs do not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from millstream.client.admin.acl import Acl, AclFilter
from millstream.client.admin.handle import AdminHandle
from millstream.client.admin.protocol_request import connected, rejection
from millstream.client.admin.result import Outcome
from millstream.model.acl import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
    label,
    parse_term,
)
from millstream.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from millstream.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

_Described = DescribeAclsResponse.Resource
_Deleted = DeleteAclsResponse.Result.MatchingAcl


def create_acls(
    handle: AdminHandle, acls: Sequence[Acl], timeout: float
) -> dict[Acl, Outcome[None]]:
    if not acls:
        return {}
    request = CreateAclsRequest(
        creations=[
            CreateAclsRequest.Creation(
                resource_type=parse_term(ResourceType, acl.resource_type),
                resource_name=acl.resource_name,
                resource_pattern_type=parse_term(PatternType, acl.pattern_type),
                principal=acl.principal,
                host=acl.host,
                operation=parse_term(Operation, acl.operation),
                permission_type=parse_term(Permission, acl.permission),
            )
            for acl in acls
        ]
    )
    with connected(handle, "Creating ACLs", timeout) as cluster:
        response = cluster.attempt(
            "create ACLs", lambda: cluster.any_connection().call(request, CreateAclsResponse)
        )
    return {
        acl: rejection(row.error_code, f"Creating an ACL of {acl.principal}", row.error_message)
        if row.error_code
        else None
        for acl, row in zip(acls, response.results, strict=True)
    }


def list_acls(handle: AdminHandle, wanted: AclFilter, timeout: float) -> list[Acl]:
    what = "Listing ACLs"
    request = DescribeAclsRequest(**_fields_of(wanted))
    with connected(handle, what, timeout) as cluster:
        response = cluster.attempt(
            "list ACLs", lambda: cluster.any_connection().call(request, DescribeAclsResponse)
        )
    if response.error_code:
        raise rejection(response.error_code, what, response.error_message)
    return [_acl(resource, entry) for resource in response.resources for entry in resource.acls]


def delete_acls(
    handle: AdminHandle, filters: Sequence[AclFilter], timeout: float
) -> dict[AclFilter, Outcome[list[Acl]]]:
    if not filters:
        return {}
    request = DeleteAclsRequest(
        filters=[DeleteAclsRequest.Filter(**_fields_of(each)) for each in filters]
    )
    with connected(handle, "Deleting ACLs", timeout) as cluster:
        response = cluster.attempt(
            "delete ACLs", lambda: cluster.any_connection().call(request, DeleteAclsResponse)
        )
    return {each: _deleted(row) for each, row in zip(filters, response.filter_results, strict=True)}


class _FilterFields(TypedDict):
    """The fields of a filter, which both requests have."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def _fields_of(wanted: AclFilter) -> _FilterFields:
    return {
        "resource_type_filter": parse_term(ResourceType, wanted.resource_type),
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": parse_term(PatternType, wanted.pattern_type),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": parse_term(Operation, wanted.operation),
        "permission_type": parse_term(Permission, wanted.permission),
    }


def _deleted(row: DeleteAclsResponse.Result) -> Outcome[list[Acl]]:
    what = "Deleting ACLs"
    if row.error_code:
        return rejection(row.error_code, what, row.error_message)
    for match in row.matching_acls:
        if match.error_code:
            return rejection(match.error_code, what, match.error_message)
    return [_acl(match, match) for match in row.matching_acls]


def _acl(pattern: _Described | _Deleted, entry: _Described.Acl | _Deleted) -> Acl:
    """Return the ACL of an entry and of the resource pattern that it belongs to."""
    return Acl(
        principal=entry.principal,
        operation=_label(Operation, entry.operation),
        resource_type=_label(ResourceType, pattern.resource_type),
        resource_name=pattern.resource_name,
        pattern_type=_label(PatternType, pattern.pattern_type),
        host=entry.host,
        permission=_label(Permission, entry.permission_type),
    )


def _label(kind: type[Operation | ResourceType | PatternType | Permission], value: int) -> str:
    return label(kind(value))
