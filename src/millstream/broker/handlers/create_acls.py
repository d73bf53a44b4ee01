"""CreateAcls: versions 1 to 3. Any broker executes it, by compare-and-swap.

Each ACL has a result of its own. An ACL that exists already is no error. INVALID_REQUEST for an ACL
that no request could match: unknown types or operations, an empty name, a principal without a type,
or a prefixed pattern with the name `*`. SECURITY_DISABLED if there is no authorizer.

The ACLs of one resource pattern are one record, which is changed once for all ACLs of a request.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import error_rows
from millstream.broker.handlers.describe_acls import rejection_message
from millstream.metadata.security_record import (
    AclEntry,
    AclResource,
    acl_key,
    decode_acls,
    encode_acls,
)
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.principal import parse_principal
from millstream.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse

#: Maximum number of ACLs of one resource pattern: they are one value in the metadata store.
ENTRIES_MAX: Final = 5000
#: Names and principals are parts of keys and values in the metadata store.
TEXT_LENGTH_MAX: Final = 1000

_Creation = CreateAclsRequest.Creation
_Row = CreateAclsResponse.Result


async def handle(request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
    context.require_cluster(Operation.ALTER)
    if context.services.authorizer is None:
        return _error_response(request, context, ErrorCode.SECURITY_DISABLED)
    rows: list[_Row] = []
    planned: dict[AclResource, list[tuple[AclEntry, _Row]]] = {}
    for creation in request.creations:
        row = _Row()
        rows.append(row)
        problem = _problem(creation)
        if problem is not None:
            row.error_code, row.error_message = ErrorCode.INVALID_REQUEST, problem
            continue
        resource = AclResource(
            creation.resource_type, creation.resource_pattern_type, creation.resource_name
        )
        entry = AclEntry(
            creation.principal, creation.host, creation.operation, creation.permission_type
        )
        planned.setdefault(resource, []).append((entry, row))
    for resource, additions in planned.items():
        await _add(resource, additions, context)
    return CreateAclsResponse(results=rows)


def _error_response(
    request: CreateAclsRequest, context: Context, code: ErrorCode
) -> CreateAclsResponse:
    message = rejection_message(code)
    return CreateAclsResponse(
        results=error_rows(_Row, request.creations, (), error_code=code, error_message=message)
    )


API: Final = ApiEntry(
    CreateAclsRequest,
    CreateAclsResponse,
    versions=(1, 3),
    handle=handle,
    audit=change.acls_created,
    error_response=_error_response,
    access=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)


async def _add(
    resource: AclResource, additions: list[tuple[AclEntry, _Row]], context: Context
) -> None:
    """Add ACLs to the record of a pattern."""

    def edit(value: bytes | None) -> bytes:
        present = () if value is None else decode_acls(value)
        entries = tuple(dict.fromkeys((*present, *(entry for entry, _ in additions))))
        if len(entries) > ENTRIES_MAX:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"a resource pattern has at most {ENTRIES_MAX} ACLs"
            )
        return encode_acls(entries)

    try:
        await context.services.catalog.alter_key(acl_key(resource), edit)
    except (BrokerError, MetadataStoreError) as error:
        code = error.code if isinstance(error, BrokerError) else ErrorCode.REQUEST_TIMED_OUT
        for _, row in additions:
            row.error_code, row.error_message = code, str(error)


def _problem(creation: _Creation) -> str | None:
    """Return why an ACL is not valid, as a sentence; None if it is valid."""
    kind, name = creation.resource_type, creation.resource_name
    if kind not in list(ResourceType) or kind <= ResourceType.ANY:
        return f"the resource type {kind} is not allowed"
    if creation.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "the pattern type must be literal or prefixed"
    if creation.operation not in list(Operation) or creation.operation <= Operation.ANY:
        return f"the operation {creation.operation} is not allowed"
    if creation.permission_type not in (Permission.ALLOW, Permission.DENY):
        return "the permission must be allow or deny"
    if not name:
        return "the resource name must not be empty"
    if kind == ResourceType.CLUSTER and name != CLUSTER_NAME:
        return f"the only name of a cluster resource is {CLUSTER_NAME}"
    if creation.resource_pattern_type == PatternType.PREFIXED and name == WILDCARD:
        return "a prefixed pattern must not have the name *; use the literal pattern"
    if not creation.host:
        return "the host must not be empty; use * for all hosts"
    if max(len(name), len(creation.principal), len(creation.host)) > TEXT_LENGTH_MAX:
        return f"names, principals and hosts have at most {TEXT_LENGTH_MAX} characters"
    try:
        parse_principal(creation.principal)
    except ValueError as error:
        return f"the principal must be {error}"
    return None
