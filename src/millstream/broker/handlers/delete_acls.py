"""DeleteAcls: versions 1 to 3. Deletes the ACLs that filters match, by compare-and-swap.

Each filter has a result of its own, with the ACLs that it deleted. INVALID_REQUEST for a filter
with unknown types or operations. SECURITY_DISABLED if there is no authorizer.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import error_rows
from millstream.broker.handlers.describe_acls import filter_of, rejection_message
from millstream.metadata.security_record import (
    AclEntry,
    AclResource,
    acl_key,
    decode_acls,
    encode_acls,
)
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse

_Row = DeleteAclsResponse.Result


async def handle(request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
    context.require_cluster(Operation.ALTER)
    if context.services.authorizer is None:
        return _error_response(request, context, ErrorCode.SECURITY_DISABLED)
    response = DeleteAclsResponse()
    doomed: dict[AclResource, dict[AclEntry, None]] = {}
    for each in request.filters:
        row = _Row()
        response.filter_results.append(row)
        wanted = filter_of(each)
        problem = wanted.problem
        if problem is not None:
            row.error_code, row.error_message = ErrorCode.INVALID_REQUEST, problem
            continue
        for resource, entries in wanted.select(context.services.catalog.image.acls):
            doomed.setdefault(resource, {}).update(dict.fromkeys(entries))
            row.matching_acls += [_matching(resource, entry) for entry in entries]
    for resource, removed in doomed.items():
        problem = await _remove(resource, removed, context)
        if problem is not None:
            _mark(response, resource, problem)
    return response


def _error_response(
    request: DeleteAclsRequest, context: Context, code: ErrorCode
) -> DeleteAclsResponse:
    message = rejection_message(code)
    return DeleteAclsResponse(
        filter_results=error_rows(_Row, request.filters, (), error_code=code, error_message=message)
    )


API: Final = ApiEntry(
    DeleteAclsRequest,
    DeleteAclsResponse,
    versions=(1, 3),
    handle=handle,
    audit=change.acls_deleted,
    error_response=_error_response,
    access=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)


async def _remove(
    resource: AclResource, removed: Container[AclEntry], context: Context
) -> str | None:
    """Remove ACLs from the record of a pattern; return why that failed."""

    def edit(value: bytes | None) -> bytes | None:
        present = () if value is None else decode_acls(value)
        kept = tuple(entry for entry in present if entry not in removed)
        return encode_acls(kept) if kept else None

    try:
        await context.services.catalog.alter_key(acl_key(resource), edit)
    except (BrokerError, MetadataStoreError) as error:
        return str(error)
    return None


def _matching(resource: AclResource, entry: AclEntry) -> _Row.MatchingAcl:
    return _Row.MatchingAcl(
        resource_type=resource.resource_type,
        resource_name=resource.name,
        pattern_type=resource.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _mark(response: DeleteAclsResponse, resource: AclResource, problem: str) -> None:
    """Report that the ACLs of a pattern were not deleted."""
    for row in response.filter_results:
        for each in row.matching_acls:
            found = AclResource(each.resource_type, each.pattern_type, each.resource_name)
            if found == resource:
                each.error_code = ErrorCode.REQUEST_TIMED_OUT
                each.error_message = problem
