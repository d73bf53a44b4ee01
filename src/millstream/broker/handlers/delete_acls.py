"""DeleteAcls: versions 1 to 3. SECURITY_DISABLED for each filter: there is no authorizer."""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.handlers.describe_acls import NO_AUTHORIZER
from millstream.model.error import ErrorCode
from millstream.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse


def handle(request: DeleteAclsRequest, context: Context) -> DeleteAclsResponse:
    result = DeleteAclsResponse.Result(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))


API: Final = ApiEntry(
    DeleteAclsRequest, DeleteAclsResponse, versions=(1, 3), handle=handle, audit=change.acls_deleted
)
