"""DescribeNeededAccess: version 0. What principals needed on this broker, in learning mode.

This API is Millstream's own, and ApiVersions does not list it: `millstream acl learn` asks every
broker. SECURITY_DISABLED if there is no authorizer. A broker that enforces ACLs shows nothing.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.handlers.describe_acls import NO_AUTHORIZER
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.messages.describe_needed_access import (
    DescribeNeededAccessRequest,
    DescribeNeededAccessResponse,
)


def handle(request: DescribeNeededAccessRequest, context: Context) -> DescribeNeededAccessResponse:
    context.require_cluster(Operation.DESCRIBE)
    authorizer = context.services.authorizer
    if authorizer is None:
        return DescribeNeededAccessResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
        )
    return DescribeNeededAccessResponse(
        is_learning=authorizer.is_learning,
        omitted=authorizer.observations.omitted,
        needs=[
            DescribeNeededAccessResponse.Need(
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                resource_type=each.resource_type,
                resource_name=each.name,
                is_denied=not authorizer.would_allow(*each),
            )
            for each in authorizer.observations
        ],
    )


API: Final = ApiEntry(
    DescribeNeededAccessRequest,
    DescribeNeededAccessResponse,
    versions=(0, 0),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
