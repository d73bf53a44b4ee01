"""Kafka's tools, confluent-kafka and kafka-python manage ACLs, on one broker and on three."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from harness.in_process.principal_server import PrincipalServerSet
from harness.tool.java import require_java
from kafka_tools.runner import Result, ToolRunner

WAIT_S = 30.0


@pytest.fixture(scope="module", params=[1, 3], ids=["one broker", "three brokers"])
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(tmp_path_factory.mktemp("acl"), count=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolRunner]:
    require_java("jars")
    with ToolRunner(tmp_path_factory.mktemp("tools")) as runner:
        yield runner


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def test_kafka_acls(
    brokers: PrincipalServerSet, tools: ToolRunner, name: str, tmp_path: Path
) -> None:
    def acls(*arguments: str) -> Result:
        return tools.run("kafka-acls", "--bootstrap-server", brokers.address(1), *arguments)

    user = ("--allow-principal", f"User:{name}")
    added = acls("--add", *user, "--producer", "--topic", name, "--idempotent")
    assert added.exit == 0, added.text()
    added = acls("--add", *user, "--consumer", "--topic", name, "--group", f"{name}-g")
    assert added.exit == 0, added.text()
    prefix = ("--resource-pattern-type", "prefixed")
    added = acls("--add", *user, "--operation", "Describe", "--topic", "pre-", *prefix)
    assert added.exit == 0, added.text()
    brokers.wait_for_acls()

    listed = acls("--list", "--principal", f"User:{name}")
    assert listed.exit == 0, listed.text()
    for text in ("WRITE", "CREATE", "READ", "IDEMPOTENT_WRITE", "PREFIXED", f"{name}-g"):
        assert text in listed.out, listed.out
    removed = acls(
        "--remove", "--force", *user, "--operation", "Describe", "--topic", "pre-", *prefix
    )
    assert removed.exit == 0, removed.text()
    assert "PREFIXED" not in acls("--list", "--principal", f"User:{name}").out

    denied = tmp_path / "denied.properties"
    denied.write_text("client.id=as-mallory\n")
    failed = acls("--list", "--command-config", str(denied))
    assert "ClusterAuthorizationException" in failed.text()


def test_confluent_kafka(brokers: PrincipalServerSet, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.address(1)})
    binding = AclBinding(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.PREFIXED,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([binding]).values():
        assert future.result(WAIT_S) is None
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        f"{name}-1",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    brokers.wait_for_acls()
    assert admin.describe_acls(wanted).result(WAIT_S) == [binding]
    for future in admin.delete_acls([wanted]).values():
        assert future.result(WAIT_S) == [binding]
    brokers.wait_for_acls()
    assert admin.describe_acls(wanted).result(WAIT_S) == []
    stranger = AdminClient({"bootstrap.servers": brokers.address(1), "client.id": "as-mallory"})
    # librdkafka 2.16 returns an empty list if DescribeAcls is denied.
    for future in stranger.create_acls([binding]).values():
        with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            future.result(WAIT_S)


def test_kafka_python(brokers: PrincipalServerSet, name: str) -> None:
    from kafka import admin as kafka_admin

    def filter_of(kind: Any, **fields: Any) -> Any:
        return kind(
            principal="User:alice",
            host="*",
            operation=kafka_admin.ACLOperation.READ,
            permission_type=kafka_admin.ACLPermissionType.ALLOW,
            **fields,
        )

    client = kafka_admin.KafkaAdminClient(bootstrap_servers=brokers.address(1))
    try:
        acl = filter_of(
            kafka_admin.ACL,
            resource_pattern=kafka_admin.ResourcePattern(kafka_admin.ResourceType.TOPIC, name),
        )
        created = client.create_acls([acl])
        assert created["failed"] == []
        brokers.wait_for_acls()
        wanted = filter_of(
            kafka_admin.ACLFilter,
            resource_pattern=kafka_admin.ResourcePatternFilter(
                kafka_admin.ResourceType.TOPIC, name, kafka_admin.ACLResourcePatternType.LITERAL
            ),
        )
        found, _ = client.describe_acls(wanted)
        assert [(each.principal, each.resource_pattern.resource_name) for each in found] == [
            ("User:alice", name)
        ]
        ((_, deleted, _),) = client.delete_acls([wanted])
        assert len(deleted) == 1
    finally:
        client.close()
