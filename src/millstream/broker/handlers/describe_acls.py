"""DescribeAcls: versions 1 to 3. SECURITY_DISABLED, because there is no authorizer."""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.model.error import ErrorCode
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER = "No Authorizer is configured."


def handle(request: DescribeAclsRequest, context: Context) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


API: Final = ApiEntry(DescribeAclsRequest, DescribeAclsResponse, versions=(1, 3), handle=handle)
