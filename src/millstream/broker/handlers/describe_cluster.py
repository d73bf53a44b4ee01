"""DescribeCluster: versions 0 to 2.

Lists the brokers with their addresses for the client's listener. There are no controller endpoints
(type 2): the controller is one of the brokers. A client may ask for its authorized operations on
the cluster; it gets 0 if it may not describe the cluster.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS = 1
_CONTROLLERS = 2


def handle(request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        is_known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if is_known
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message="this is a broker; ask it for endpoint type 1",
            endpoint_type=request.endpoint_type,
        )
    services = context.services
    response = DescribeClusterResponse(
        cluster_id=services.catalog.cluster_id, controller_id=services.controller_id
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    for broker in services.catalog.image.brokers.values():
        endpoint = broker.endpoint(context.listener)
        if endpoint is not None:
            response.brokers.append(
                DescribeClusterResponse.Broker(
                    broker_id=broker.node_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                )
            )
    return response


API: Final = ApiEntry(
    DescribeClusterRequest,
    DescribeClusterResponse,
    versions=(0, 2),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.CLUSTER, "to see the authorized operations"),),
)
