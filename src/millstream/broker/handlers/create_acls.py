"""CreateAcls: versions 1 to 3. SECURITY_DISABLED for each ACL: there is no authorizer."""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.handlers.describe_acls import NO_AUTHORIZER
from millstream.model.error import ErrorCode
from millstream.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse


def handle(request: CreateAclsRequest, context: Context) -> CreateAclsResponse:
    result = CreateAclsResponse.Result(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return CreateAclsResponse(results=[result] * len(request.creations))


API: Final = ApiEntry(
    CreateAclsRequest, CreateAclsResponse, versions=(1, 3), handle=handle, audit=change.acls_created
)
