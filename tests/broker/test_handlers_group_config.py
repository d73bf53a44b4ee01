"""Configs of groups over the wire: set, described, listed, and applied at the next heartbeat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient
from millstream.model.error import ErrorCode
from millstream.wire.messages.alter_configs import AlterConfigsRequest
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest
from millstream.wire.messages.sync_group import SyncGroupRequest

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, _ = range(4)
SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
SETTINGS = {
    "group.consumer.min.session.timeout.ms": 200,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.initial.rebalance.delay.ms": 0,
}


def ready(broker: BrokerProcess) -> RawClient:
    client = RawClient(broker.host, broker.port)
    client.call(FindCoordinatorRequest(coordinator_keys=["g"]))
    return client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("group-config")
    with BrokerProcess(folder, SETTINGS) as process:
        with ready(process) as client:
            client.create_topic("t")
        yield process


def describe(client: RawClient, group_id: str, version: int = 4) -> Any:
    resource = DescribeConfigsRequest.Resource(resource_type=GROUP, resource_name=group_id)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    return client.call(request, version).results[0]


def shown(client: RawClient, group_id: str) -> dict[str, tuple[str | None, int]]:
    result = describe(client, group_id)
    assert result.error_code == 0
    return {each.name: (each.value, each.config_source) for each in result.configs}


def change(
    client: RawClient,
    group_id: str,
    name: str,
    value: str | None,
    operation: int = SET,
    **fields: Any,
) -> int:
    kind = IncrementalAlterConfigsRequest.Resource
    config = kind.Config(name=name, config_operation=operation, value=value)
    resource = kind(resource_type=GROUP, resource_name=group_id, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], **fields)
    return int(client.call(request).responses[0].error_code)


def beat(client: RawClient, group_id: str, epoch: int) -> Any:
    request = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id="me", member_epoch=epoch)
    if epoch == 0:
        request.rebalance_timeout_ms = 1000
        request.subscribed_topic_names = ["t"]
        request.topic_partitions = []
    response = client.call(request, 1)
    assert response.error_code == 0, response
    return response


def state_of(client: RawClient, group_id: str) -> str:
    (group,) = client.call(ConsumerGroupDescribeRequest(group_ids=[group_id])).groups
    return str(group.group_state)


@pytest.mark.parametrize("version", range(1, 5))
def test_a_group_without_overrides_shows_the_broker_settings(
    client: RawClient, version: int
) -> None:
    found = describe(client, f"nobody-{version}", version)
    assert found.error_code == 0
    assert {each.name: each.value for each in found.configs} == {
        SESSION: "45000",
        HEARTBEAT: "5000",
        "consumer.assignment.interval.ms": "1000",
    }
    assert {each.config_source for each in found.configs} == {5}
    assert not any(each.read_only for each in found.configs)


def test_overrides_are_set_and_deleted(client: RawClient) -> None:
    assert change(client, "own", HEARTBEAT, "7000") == 0
    assert change(client, "own", SESSION, "50000") == 0
    assert shown(client, "own")[HEARTBEAT] == ("7000", 8)
    (config,) = [each for each in describe(client, "own").configs if each.name == SESSION]
    assert [(each.name, each.source) for each in config.synonyms] == [
        (SESSION, 8),
        ("group.consumer.session.timeout.ms", 5),
    ]
    assert change(client, "own", HEARTBEAT, None, DELETE) == 0
    assert shown(client, "own")[HEARTBEAT] == ("5000", 5)
    assert shown(client, "own")[SESSION] == ("50000", 8)


def test_alter_configs_replaces_all_overrides_of_a_group(client: RawClient) -> None:
    assert change(client, "all", HEARTBEAT, "7000") == 0
    kind = AlterConfigsRequest.Resource
    resource = kind(
        resource_type=GROUP,
        resource_name="all",
        configs=[kind.Config(name=SESSION, value="50000")],
    )
    assert client.call(AlterConfigsRequest(resources=[resource])).responses[0].error_code == 0
    assert shown(client, "all")[SESSION] == ("50000", 8)
    assert shown(client, "all")[HEARTBEAT] == ("5000", 5)


def test_invalid_group_overrides_are_rejected(client: RawClient) -> None:
    invalid = ErrorCode.INVALID_CONFIG
    assert change(client, "bad", SESSION, "100") == invalid
    assert change(client, "bad", SESSION, "60001") == invalid
    assert change(client, "bad", HEARTBEAT, "soon") == invalid
    assert change(client, "bad", "retention.ms", "1") == invalid
    assert change(client, "bad", SESSION, "5000") == invalid, "no longer than a heartbeat"
    assert change(client, "bad", SESSION, "50000", APPEND) == invalid
    assert change(client, "bad", SESSION, None) == ErrorCode.INVALID_REQUEST
    assert change(client, "", SESSION, "50000") == ErrorCode.INVALID_REQUEST
    assert describe(client, "").error_code == ErrorCode.INVALID_REQUEST
    assert change(client, "bad", SESSION, "50000", validate_only=True) == 0
    assert {source for _, source in shown(client, "bad").values()} == {5}


def test_the_next_heartbeat_response_has_the_new_interval(client: RawClient) -> None:
    assert change(client, "live", HEARTBEAT, "6000") == 0
    joined = beat(client, "live", 0)
    assert joined.heartbeat_interval_ms == 6000, "set before the group was there"
    assert change(client, "live", HEARTBEAT, "7000") == 0
    assert beat(client, "live", joined.member_epoch).heartbeat_interval_ms == 7000
    assert change(client, "live", HEARTBEAT, None, DELETE) == 0
    assert beat(client, "live", joined.member_epoch).heartbeat_interval_ms == 5000


def test_an_upgraded_group_has_its_overrides(client: RawClient) -> None:
    assert change(client, "upgraded", HEARTBEAT, "6000") == 0
    protocol = JoinGroupRequest.Protocol(
        name="range", metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    )
    request = JoinGroupRequest(
        group_id="upgraded",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = client.call(request, 3)
    assert joined.error_code == 0
    part = SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"")
    sync = SyncGroupRequest(
        group_id="upgraded",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[part],
    )
    assert client.call(sync, 4).error_code == 0
    assert beat(client, "upgraded", 0).heartbeat_interval_ms == 6000


def test_a_member_is_fenced_after_the_session_timeout_of_its_group(client: RawClient) -> None:
    assert change(client, "short", HEARTBEAT, "50") == 0
    assert change(client, "short", SESSION, "200") == 0
    beat(client, "short", 0)
    beat(client, "long", 0)
    wait_until(lambda: state_of(client, "short") == "Empty", "the group's own session timeout")
    assert state_of(client, "long") == "Stable"


@pytest.mark.parametrize("name", ["a/b", "\0", "ü \U0001f600", "".join(map(chr, range(1, 256)))])
def test_groups_with_any_name_have_configs(client: RawClient, name: str) -> None:
    assert change(client, name, HEARTBEAT, "8000") == 0
    assert shown(client, name)[HEARTBEAT] == ("8000", 8)
    listed = client.call(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    assert name in [each.resource_name for each in listed.config_resources]
    assert change(client, name, HEARTBEAT, None, DELETE) == 0
    listed = client.call(ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    assert name not in [each.resource_name for each in listed.config_resources]


def test_resources_are_listed(client: RawClient) -> None:
    assert change(client, "listed", HEARTBEAT, "8000") == 0

    def listed(*types: int, version: int = 1) -> set[tuple[int, str]]:
        response = client.call(ListConfigResourcesRequest(resource_types=list(types)), version)
        assert response.error_code == 0
        rows = [(each.resource_type, each.resource_name) for each in response.config_resources]
        assert len(rows) == len(set(rows))
        return set(rows)

    assert {(TOPIC, "t"), (BROKER, "1"), (BROKER_LOGGER, "1"), (GROUP, "listed")} <= listed()
    assert listed(BROKER, BROKER, TOPIC) >= {(TOPIC, "t"), (BROKER, "1")}
    assert {kind for kind, _ in listed(GROUP)} == {GROUP}
    assert listed(CLIENT_METRICS) == set()
    assert client.call(ListConfigResourcesRequest(), 0).config_resources == []
    unknown = client.call(ListConfigResourcesRequest(resource_types=[GROUP, 77]), 1)
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_group_configs_survive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        with ready(broker) as client:
            client.create_topic("t")
            assert change(client, "kept", HEARTBEAT, "9000") == 0
        broker.kill()
        broker.start()
        with ready(broker) as client:
            assert shown(client, "kept")[HEARTBEAT] == ("9000", 8)
            assert beat(client, "kept", 0).heartbeat_interval_ms == 9000


def test_group_configs_work_with_confluent_kafka(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entry = ConfigEntry(HEARTBEAT, "11000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "confluent", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    wanted = ConfigResource(ResourceType.GROUP, "confluent")
    found = admin.describe_configs([wanted])[wanted].result()[HEARTBEAT]
    assert (found.value, found.source) == ("11000", ConfigSource.GROUP_CONFIG.value)
