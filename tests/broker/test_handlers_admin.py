"""Requests about the cluster, to one broker: features, ACLs, the quorum, unregistration."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import Closed, RawClient, values_batch
from millstream.model.error import ErrorCode
from millstream.records.batch import scan
from millstream.records.compression import CompressionType
from millstream.wire.api import ApiKey
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.create_acls import CreateAclsRequest
from millstream.wire.messages.delete_acls import DeleteAclsRequest
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.describe_quorum import METADATA_TOPIC, DescribeQuorumRequest
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest
from millstream.wire.messages.update_features import UpdateFeaturesRequest

UPGRADE, SAFE_DOWNGRADE = 1, 2


def versions(client: RawClient, version: int = 4) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    response: ApiVersionsResponse = client.call(request, version)
    assert response.error_code == 0
    return response


def finalized(client: RawClient) -> dict[str, int]:
    rows = versions(client).finalized_features
    assert all(row.min_version_level == row.max_version_level for row in rows)
    return {row.name: row.max_version_level for row in rows}


def update(
    client: RawClient, upgrade_type: int = UPGRADE, *, dry: bool = False, **levels: int
) -> Any:
    updates = [
        UpdateFeaturesRequest.Update(
            feature=name.replace("_", "."), max_version_level=level, upgrade_type=upgrade_type
        )
        for name, level in levels.items()
    ]
    return client.call(UpdateFeaturesRequest(feature_updates=updates, validate_only=dry))


# Features


def test_supported_and_finalized_features_agree(client: RawClient) -> None:
    response = versions(client)
    supported = {
        row.name: (row.min_version, row.max_version) for row in response.supported_features
    }
    assert supported == {"group.version": (0, 1), "transaction.version": (0, 2)}
    assert finalized(client) == {"group.version": 1, "transaction.version": 2}
    # Clients of version 3 fail on a feature that may be at level 0.
    assert versions(client, 3).supported_features == []


def test_a_finalized_level_survives_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.host, broker.port) as client:
            before = versions(client).finalized_features_epoch
            assert update(client, SAFE_DOWNGRADE, transaction_version=1).error_code == 0
            assert finalized(client)["transaction.version"] == 1
            assert versions(client).finalized_features_epoch > before
        broker.stop()
        broker.start()
        with RawClient(broker.host, broker.port) as client:
            assert finalized(client)["transaction.version"] == 1
            assert update(client, UPGRADE, transaction_version=2).error_code == 0
            assert finalized(client)["transaction.version"] == 2


def test_the_setting_is_in_force_until_a_level_is_finalized(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, {"transaction.version": 0}) as broker,
        RawClient(broker.host, broker.port) as client,
    ):
        assert finalized(client) == {"group.version": 1}
        assert update(client, UPGRADE, transaction_version=2).error_code == 0
        assert finalized(client)["transaction.version"] == 2


def test_validate_only_changes_no_level(client: RawClient) -> None:
    before = finalized(client)
    assert update(client, SAFE_DOWNGRADE, dry=True, transaction_version=0).error_code == 0
    response = update(client, UPGRADE, dry=True, transaction_version=0)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert finalized(client) == before


def test_features_are_updated_all_or_none(client: RawClient) -> None:
    response = update(client, SAFE_DOWNGRADE, transaction_version=1, metadata_version=20)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "metadata.version" in response.error_message
    assert finalized(client)["transaction.version"] == 2


def test_version_0_may_allow_downgrades(client: RawClient) -> None:
    def ask(level: int, allow: bool) -> Any:
        row = UpdateFeaturesRequest.Update(
            feature="transaction.version", max_version_level=level, allow_downgrade=allow
        )
        return client.call(UpdateFeaturesRequest(feature_updates=[row]), 0)

    assert ask(1, False).error_code == ErrorCode.INVALID_UPDATE_VERSION
    response = ask(1, True)
    assert [(row.feature, row.error_code) for row in response.results] == [
        ("transaction.version", 0)
    ]
    assert finalized(client)["transaction.version"] == 1
    assert ask(2, False).error_code == 0


def test_consumer_groups_are_rejected_at_group_version_0(client: RawClient) -> None:
    def join() -> int:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1000,
            subscribed_topic_names=[],
            topic_partitions=[],
        )
        return int(client.call(request).error_code)

    assert update(client, SAFE_DOWNGRADE, group_version=0).error_code == 0
    assert "group.version" not in finalized(client)
    assert join() == ErrorCode.UNSUPPORTED_VERSION
    (row,) = client.call(ConsumerGroupDescribeRequest(group_ids=["g"])).groups
    assert row.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert update(client, UPGRADE, group_version=1).error_code == 0
    assert join() != ErrorCode.UNSUPPORTED_VERSION


# ApiVersions


def test_produce_is_listed_from_version_0_and_rejected(client: RawClient) -> None:
    (row,) = [each for each in versions(client).api_keys if each.api_key == ApiKey.PRODUCE]
    assert row.min_version == 0
    # Header version 1, then acks, timeout and no topic.
    header = b"\x00\x00\x00\x02\x00\x00\x00\x01\xff\xff"
    body = b"\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"
    frame = header + body
    client.send_raw(len(frame).to_bytes(4) + frame)
    with pytest.raises(Closed):
        client.receive_frame()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_an_older_librdkafka_compresses(
    broker: BrokerProcess, client: RawClient, codec: str
) -> None:
    topic = f"compressed-{codec}"
    client.create_topic(topic)
    command = ["kcat", "-P", "-b", broker.bootstrap, "-t", topic, "-z", codec]
    subprocess.run(command, input=b"x" * 5000, check=True, timeout=60)
    row = client.fetch(topic, 0, wait_ms_max=5000)
    ((_, header),) = scan(row.records)
    assert header.codec == CompressionType[codec.upper()]


# ACLs


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acl_requests_get_security_disabled(client: RawClient, version: int) -> None:
    response = client.call(DescribeAclsRequest(), version)
    assert (response.error_code, response.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert response.error_message
    creation = CreateAclsRequest.Creation(resource_name="t", principal="User:a", host="*")
    response = client.call(CreateAclsRequest(creations=[creation, creation]), version)
    assert [row.error_code for row in response.results] == [ErrorCode.SECURITY_DISABLED] * 2
    wanted = DeleteAclsRequest.Filter()
    response = client.call(DeleteAclsRequest(filters=[wanted, wanted]), version)
    assert [row.error_code for row in response.filter_results] == [ErrorCode.SECURITY_DISABLED] * 2


# The quorum


def quorum(client: RawClient, topic: str, *partitions: int, version: int = 2) -> Any:
    rows = [DescribeQuorumRequest.Topic.Partition(partition_index=each) for each in partitions]
    wanted = DescribeQuorumRequest.Topic(topic_name=topic, partitions=rows)
    return client.call(DescribeQuorumRequest(topics=[wanted]), version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_single_broker_is_the_only_voter(
    broker: BrokerProcess, client: RawClient, version: int
) -> None:
    response = quorum(client, METADATA_TOPIC, 0, version=version)
    (topic,) = response.topics
    (partition,) = topic.partitions
    assert (response.error_code, partition.error_code, topic.topic_name) == (0, 0, METADATA_TOPIC)
    assert (partition.leader_id, partition.observers) == (1, [])
    assert 0 < partition.leader_epoch <= partition.high_watermark
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, partition.high_watermark)
    if version == 2:
        (node,) = response.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.host, listener.port) == (1, broker.host, broker.port)
    client.create_topic(f"raises-the-revision-{version}")
    later = quorum(client, METADATA_TOPIC, 0).topics[0].partitions[0]
    assert later.high_watermark > partition.high_watermark
    assert later.leader_epoch == partition.leader_epoch


@pytest.mark.parametrize(
    ("topic", "partitions"), [("t", (0,)), (METADATA_TOPIC, (1,)), (METADATA_TOPIC, (0, 1))]
)
def test_other_partitions_are_unknown_to_describe_quorum(
    client: RawClient, topic: str, partitions: tuple[int, ...]
) -> None:
    (found,) = quorum(client, topic, *partitions).topics
    codes = [row.error_code for row in found.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(partitions)


# Unregistration


def test_the_last_broker_and_unknown_brokers_are_not_unregistered(client: RawClient) -> None:
    response = client.call(UnregisterBrokerRequest(broker_id=1))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    response = client.call(UnregisterBrokerRequest(broker_id=9))
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert client.produce("still-served", values_batch(b"v")).error_code in (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
