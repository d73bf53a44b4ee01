"""Requests about the cluster itself, on three brokers and an etcd: features, quorum, unregistering.

The tests share the cluster and run in this order; each leaves all brokers running.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_client import RawClient
from millstream.model.error import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.describe_quorum import METADATA_TOPIC, DescribeQuorumRequest
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest
from millstream.wire.messages.update_features import UpdateFeaturesRequest

pytestmark = pytest.mark.xdist_group("admin-cluster")

ALL = [1, 2, 3]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder: Path = tmp_path_factory.mktemp("admin")
    with ProcessCluster(folder) as cluster:
        cluster.create_topic("t", 6)
        yield cluster


def call(broker: BrokerProcess, request: Any) -> Any:
    with RawClient(broker.host, broker.port) as client:
        return client.call(request)


def members(broker: BrokerProcess) -> tuple[list[int], int]:
    """Return the brokers and the controller in the metadata of one broker."""
    response = call(broker, DescribeClusterRequest())
    return sorted(row.broker_id for row in response.brokers), response.controller_id


def until_whole(cluster: ProcessCluster) -> None:
    """Wait until every broker knows all others, and all replicas are in sync."""

    def is_whole() -> bool:
        request = MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
        responses = [call(broker, request) for broker in cluster]
        return all(
            sorted(row.node_id for row in response.brokers) == ALL
            and all(sorted(row.isr_nodes) == ALL for row in response.topics[0].partitions)
            for response in responses
        )

    wait_until(is_whole, "all brokers in sync", 120)


def leaders(broker: BrokerProcess) -> list[int]:
    request = MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
    return [row.leader_id for row in call(broker, request).topics[0].partitions]


def quorum(broker: BrokerProcess) -> Any:
    row = DescribeQuorumRequest.Topic.Partition(partition_index=0)
    wanted = DescribeQuorumRequest.Topic(topic_name=METADATA_TOPIC, partitions=[row])
    response = call(broker, DescribeQuorumRequest(topics=[wanted]))
    partition = response.topics[0].partitions[0]
    assert (response.error_code, partition.error_code) == (0, 0), response
    assert sorted(node.node_id for node in response.nodes) == members(broker)[0]
    return partition


def test_a_level_counts_on_every_broker(cluster: ProcessCluster) -> None:
    def finalize(level: int, upgrade_type: int, through: int) -> None:
        row = UpdateFeaturesRequest.Update(
            feature="transaction.version", max_version_level=level, upgrade_type=upgrade_type
        )
        response = call(cluster[through], UpdateFeaturesRequest(feature_updates=[row]))
        assert response.error_code == 0, response
        wait_until(lambda: levels() == [level] * 3, "all brokers to follow")

    def levels() -> list[int]:
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
        responses = [call(broker, request) for broker in cluster]
        return [
            row.max_version_level
            for response in responses
            for row in response.finalized_features
            if row.name == "transaction.version"
        ]

    finalize(1, 2, through=2)
    finalize(2, 1, through=3)


def test_clients_send_requests_for_the_controller_to_the_broker_they_reach(
    cluster: ProcessCluster,
) -> None:
    """A client whose metadata named a dead controller would wait for it until a timeout."""
    for node_id in ALL:
        assert call(cluster[node_id], MetadataRequest(topics=[])).controller_id == node_id


def test_brokers_observe_the_controller(cluster: ProcessCluster) -> None:
    for broker in cluster:
        _, controller = members(broker)
        partition = quorum(broker)
        (voter,) = partition.current_voters
        assert (partition.leader_id, voter.replica_id) == (controller, controller)
        assert voter.log_end_offset == partition.high_watermark >= partition.leader_epoch > 0
        observers = {row.replica_id: row for row in partition.observers}
        assert sorted([controller, *observers]) == ALL
        assert all(0 < row.log_end_offset <= voter.log_end_offset for row in observers.values())
        assert all(row.last_fetch_timestamp > 0 for row in observers.values())

    def all_caught_up() -> bool:
        found = quorum(cluster[1])
        return all(
            row.log_end_offset == found.high_watermark and row.last_caught_up_timestamp > 0
            for row in found.observers
        )

    wait_until(all_caught_up, "all brokers to have followed")


def test_a_broker_that_is_stopped_is_unknown_for_as_long_as_it_is_registered(
    cluster: ProcessCluster,
) -> None:
    _, controller = members(cluster[1])
    frozen = next(each for each in ALL if each != controller)
    cluster[frozen].pause()
    try:
        found = quorum(cluster[controller])
        offsets = {row.replica_id: row.log_end_offset for row in found.observers}
        assert offsets.get(frozen, -1) == -1
    finally:
        cluster[frozen].resume()
    until_whole(cluster)


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_live_broker_is_out_until_it_is_started_again(
    cluster: ProcessCluster, is_controller: bool
) -> None:
    _, controller = members(cluster[1])
    removed = controller if is_controller else next(each for each in ALL if each != controller)
    others = [each for each in ALL if each != removed]
    asked = cluster[others[0]]
    response = call(asked, UnregisterBrokerRequest(broker_id=removed))
    assert response.error_code == 0, response
    wait_until(
        lambda: members(asked)[0] == others and members(asked)[1] in others,
        "the others to be the cluster",
    )
    wait_until(lambda: set(leaders(asked)) <= set(others), "the others to lead")
    wait_until(
        lambda: "was unregistered: it serves no requests" in cluster[removed].log_text(),
        "the broker to notice",
    )
    # The broker is alive, knows the others, and leads no partition.
    wait_until(lambda: members(cluster[removed])[0] == others, "the broker to know of the others")
    wait_until(lambda: set(leaders(cluster[removed])) <= set(others), "the broker to lead nothing")
    again = call(asked, UnregisterBrokerRequest(broker_id=removed))
    assert again.error_code == 0, "replicas of it are left, so something is known of it"
    cluster[removed].stop()
    cluster[removed].start()
    until_whole(cluster)


def test_a_dead_broker_is_not_registered(cluster: ProcessCluster) -> None:
    cluster[3].kill()
    wait_until(lambda: members(cluster[1])[0] == [1, 2], "broker 3 to be gone")
    assert call(cluster[1], UnregisterBrokerRequest(broker_id=3)).error_code == 0
    unknown = call(cluster[1], UnregisterBrokerRequest(broker_id=9))
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    cluster[3].start()
    until_whole(cluster)
