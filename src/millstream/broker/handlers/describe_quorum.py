"""DescribeQuorum: versions 0 to 2. Describes the metadata store in the terms of Kafka's quorum.

The metadata is in SQLite or etcd, so no broker is a voter in Kafka's sense. The response maps the
store to Kafka's terms:

- An offset is a revision of the store. The high watermark is the latest revision that any broker
  has seen.
- The leader, and the only voter, is the controller. The leader epoch is the revision at which it
  became the controller. The members of etcd are not shown (see `etcdctl endpoint status`).
- The other brokers are observers. Each is asked for the revision that it has applied. A broker that
  does not respond within a second is listed with offset -1, which is unknown.

Directory ids are not set. LEADER_NOT_AVAILABLE while there is no controller, and
UNKNOWN_TOPIC_OR_PARTITION for any partition other than `__cluster_metadata-0`.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.metadata.cluster_record import BrokerRecord
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.sentinel import INT32_MAX
from millstream.replication.peer import Peer, PeerError
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.describe_quorum import (
    METADATA_TOPIC,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ReplicaState,
)

_Topic = DescribeQuorumResponse.Topic
_Node = DescribeQuorumResponse.Node

#: Timeout of the request to another broker.
_ASK_S_MAX: Final = 1.0
#: The first version of ApiVersions whose response has a revision.
_ASK_VERSION: Final = 3
_UNKNOWN: Final = -1


async def handle(request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
    context.require_cluster(Operation.DESCRIBE)
    wanted = [
        (topic.topic_name, row.partition_index)
        for topic in request.topics
        for row in topic.partitions
    ]
    if wanted != [(METADATA_TOPIC, 0)]:
        return _reject(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it holds no metadata")
    image = context.services.catalog.image
    if image.controller not in image.brokers:
        return _reject(request, ErrorCode.LEADER_NOT_AVAILABLE, "there is no controller")
    brokers = sorted(image.brokers.values(), key=lambda broker: broker.node_id)
    seen = await asyncio.gather(*(_revision_of(broker, context) for broker in brokers))
    return _describe(image.controller, image.controller_epoch, brokers, seen, context)


API: Final = ApiEntry(
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    versions=(0, 2),
    handle=handle,
    access=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)


def _describe(
    controller: int,
    epoch: int,
    brokers: list[BrokerRecord],
    seen: list[int],
    context: Context,
) -> DescribeQuorumResponse:
    now_ms = context.services.clock.wall_ms()
    latest = max(seen)
    partition = _Topic.Partition(
        leader_id=controller, leader_epoch=min(epoch, INT32_MAX), high_watermark=latest
    )
    for broker, revision in zip(brokers, seen, strict=True):
        state = ReplicaState(replica_id=broker.node_id, log_end_offset=revision)
        if broker.node_id == controller:
            # The controller decides from the store's present state. Its image may be older.
            state.log_end_offset = latest
            state.last_fetch_timestamp = state.last_caught_up_timestamp = now_ms
            partition.current_voters.append(state)
            continue
        if revision != _UNKNOWN:
            state.last_fetch_timestamp = now_ms
        if revision == latest:
            state.last_caught_up_timestamp = now_ms
        partition.observers.append(state)
    return DescribeQuorumResponse(
        topics=[_Topic(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[_node(broker) for broker in brokers],
    )


def _node(broker: BrokerRecord) -> _Node:
    return _Node(
        node_id=broker.node_id,
        listeners=[
            _Node.Listener(name=each.listener_name, host=each.host, port=each.port)
            for each in broker.endpoints
        ],
    )


async def _revision_of(broker: BrokerRecord, context: Context) -> int:
    """Return the revision of the store that a broker has applied, or _UNKNOWN."""
    services = context.services
    if broker.node_id == services.config.node_id:
        return services.catalog.image.revision
    endpoint = broker.endpoint(services.config.network.inter_broker_listener)
    if endpoint is None:
        return _UNKNOWN
    client_id = f"broker-{services.config.node_id}"
    request = ApiVersionsRequest(
        client_software_name="millstream", client_software_version=version("millstream")
    )
    try:
        peer = await Peer.connect(
            services.peer_network, endpoint.host, endpoint.port, client_id, _ASK_S_MAX
        )
        try:
            response = await peer.call(request, _ASK_VERSION, ApiVersionsResponse, _ASK_S_MAX)
        finally:
            peer.close()
    except PeerError:
        return _UNKNOWN
    return response.finalized_features_epoch


def _reject(
    request: DescribeQuorumRequest, code: ErrorCode, message: str
) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            _Topic(
                topic_name=topic.topic_name,
                partitions=[
                    _Topic.Partition(
                        partition_index=row.partition_index, error_code=code, error_message=message
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
