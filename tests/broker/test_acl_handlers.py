"""CreateAcls, DescribeAcls and DeleteAcls over the wire, and their effect on three brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.in_process.principal_server import PrincipalServerSet, literal, prefixed
from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import values_batch
from millstream.model.acl import Operation, PatternType, Permission, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.create_acls import CreateAclsRequest
from millstream.wire.messages.delete_acls import DeleteAclsRequest
from millstream.wire.messages.describe_acls import DescribeAclsRequest
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(tmp_path_factory.mktemp("acl")) as found:
        yield found


def creation(**fields: Any) -> CreateAclsRequest.Creation:
    values = {
        "resource_type": TOPIC,
        "resource_name": "orders",
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    return CreateAclsRequest.Creation(**{**values, **fields})


def wanted(kind: type[Any], **fields: Any) -> Any:
    values = {
        "resource_type_filter": ResourceType.ANY,
        "pattern_type_filter": PatternType.ANY,
        "operation": Operation.ANY,
        "permission_type": Permission.ANY,
    }
    return kind(**{**values, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": ResourceType.ANY},
        {"resource_type": ResourceType.UNKNOWN},
        {"resource_type": 99},
        {"resource_pattern_type": PatternType.ANY},
        {"resource_pattern_type": PatternType.MATCH},
        {"operation": Operation.ANY},
        {"operation": Operation.UNKNOWN},
        {"permission_type": Permission.ANY},
        {"resource_name": ""},
        {"resource_name": "*", "resource_pattern_type": PatternType.PREFIXED},
        {"resource_type": ResourceType.CLUSTER, "resource_name": "mine"},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": ""},
        {"resource_name": "x" * 2000},
    ],
    ids=str,
)
def test_an_acl_that_is_not_valid_is_rejected_alone(
    brokers: PrincipalServerSet, fields: dict[str, Any]
) -> None:
    request = CreateAclsRequest(creations=[creation(**fields), creation(resource_name="valid")])
    with brokers.client(1) as client:
        rows = client.call(request).results
    assert [row.error_code for row in rows] == [ErrorCode.INVALID_REQUEST, 0]
    assert rows[0].error_message


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted(brokers: PrincipalServerSet, version: int) -> None:
    acls = [
        creation(principal="User:zoe"),
        creation(principal="User:zoe", operation=Operation.WRITE, host="10.0.0.1"),
        creation(principal="User:zoe"),
        creation(
            principal="User:zoe", resource_name="ord", resource_pattern_type=PatternType.PREFIXED
        ),
    ]
    mine = {"principal_filter": "User:zoe"}
    with brokers.client(1) as client:
        rows = client.call(CreateAclsRequest(creations=acls), version).results
        assert [row.error_code for row in rows] == [0] * 4
        found = client.call(wanted(DescribeAclsRequest, **mine), version)
        assert {
            (each.resource_name, each.pattern_type): len(each.acls) for each in found.resources
        } == {("orders", PatternType.LITERAL): 2, ("ord", PatternType.PREFIXED): 1}
        filters = [wanted(DeleteAclsRequest.Filter, **mine)] * 2
        deleted = client.call(DeleteAclsRequest(filters=filters), version).filter_results
        assert [len(row.matching_acls) for row in deleted] == [3, 3]
        assert client.call(wanted(DescribeAclsRequest, **mine), version).resources == []


def test_filters_with_unknown_terms(brokers: PrincipalServerSet) -> None:
    with brokers.client(1) as client:
        found = client.call(wanted(DescribeAclsRequest, operation=0))
        assert found.error_code == ErrorCode.INVALID_REQUEST
        filters = [wanted(DeleteAclsRequest.Filter, resource_type_filter=0)]
        (row,) = client.call(DeleteAclsRequest(filters=filters)).filter_results
        assert row.error_code == ErrorCode.INVALID_REQUEST


def test_without_an_authorizer(tmp_path: Any) -> None:
    with ServerSet(tmp_path, count=1) as plain, plain.client(1) as client:
        code = ErrorCode.SECURITY_DISABLED
        assert client.call(wanted(DescribeAclsRequest)).error_code == code
        (row,) = client.call(CreateAclsRequest(creations=[creation()])).results
        assert row.error_code == code
        filters = [wanted(DeleteAclsRequest.Filter)]
        (row,) = client.call(DeleteAclsRequest(filters=filters)).filter_results
        assert row.error_code == code
        cluster = client.call(DescribeClusterRequest(include_cluster_authorized_operations=True))
        assert cluster.cluster_authorized_operations > 0


def test_acls_hold_on_all_brokers_until_they_are_deleted(brokers: PrincipalServerSet) -> None:
    with brokers.client(1) as admin:
        admin.create_topic("everywhere", replication_factor=3)
    leader = brokers.record("everywhere").leader

    def produce() -> int:
        with brokers.client(leader, "as-writer") as client:
            return client.produce("everywhere", values_batch(b"x")).error_code

    assert produce() == DENIED
    brokers.grant("writer", Operation.WRITE, literal(TOPIC, "everywhere"))
    assert produce() == 0
    other = next(each for each in brokers.servers if each != leader)
    with brokers.client(other) as admin:
        filters = [wanted(DeleteAclsRequest.Filter, principal_filter="User:writer")]
        admin.call(DeleteAclsRequest(filters=filters))
    wait_until(lambda: produce() == DENIED, "the leader to deny")


def test_acls_survive_a_restart(brokers: PrincipalServerSet) -> None:
    brokers.grant("lasting", Operation.DESCRIBE, literal(TOPIC, "lasting"))
    brokers.stop(3)
    brokers.start(3)
    request = MetadataRequest(topics=[MetadataRequest.Topic(name="lasting")])
    request.allow_auto_topic_creation = False
    with brokers.client(3, "as-lasting") as client:
        assert client.call(request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with brokers.client(3, "as-mallory") as client:
        assert client.call(request).topics[0].error_code == DENIED


def test_a_pattern_of_a_group_matches_only_visible_topics(brokers: PrincipalServerSet) -> None:
    with brokers.client(1) as admin:
        ids = {name: admin.create_topic(name) for name in ("seen-1", "seen-2", "hidden-1")}
    for kind, name in ((TOPIC, "seen-"), (GROUP, "patterns")):
        brokers.grant("watcher", Operation.READ, prefixed(kind, name))
    for node_id in brokers.servers:
        wait_until(
            lambda node_id=node_id: "hidden-1" in brokers.services(node_id).catalog.image.topics,
            "all brokers to know the topics",
        )
    with brokers.client(1, "as-watcher") as client:
        request = FindCoordinatorRequest(coordinator_keys=["patterns"])
        wait_until(lambda: client.call(request).coordinators[0].error_code == 0, "a coordinator")
        coordinator = client.call(request).coordinators[0].node_id
    beat = ConsumerGroupHeartbeatRequest(
        group_id="patterns",
        member_id="m",
        rebalance_timeout_ms=10_000,
        subscribed_topic_regex=".*-.*",
        topic_partitions=[],
    )
    with brokers.client(coordinator, "as-watcher") as client:
        response = client.call(beat)
    assert response.error_code == 0, response
    assigned = {bytes(topic.topic_id) for topic in response.assignment.topic_partitions}
    assert assigned == {ids["seen-1"], ids["seen-2"]}


def test_authorized_operations(brokers: PrincipalServerSet) -> None:
    with brokers.client(1) as admin:
        admin.create_topic("operated", replication_factor=1)
    brokers.grant("operated", Operation.READ, literal(TOPIC, "operated"))
    request = MetadataRequest(
        topics=[MetadataRequest.Topic(name="operated")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    with brokers.client(1, "as-operated") as client:
        response = client.call(request, 10)
    expected = 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert response.topics[0].topic_authorized_operations == expected
    assert response.cluster_authorized_operations == 0
