"""DescribeCluster: the id, controller and brokers of the cluster.

`endpoint_type`: 1 brokers, 2 controllers.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, boolean, int8, int16, int32, nullable_string, string
from millstream.wire.messages.metadata import OPERATIONS_OMITTED
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


@message(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
class DescribeClusterResponse(Message):
    @struct
    class Broker:
        broker_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = nullable_string()
        is_fenced: bool = boolean(since=2)

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[Broker] = array(Broker)
    cluster_authorized_operations: int = int32(default=OPERATIONS_OMITTED)
