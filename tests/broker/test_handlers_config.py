"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import RawClient, values_batch
from millstream.model.config import RETIRED
from millstream.model.error import ErrorCode
from millstream.wire.messages.alter_configs import AlterConfigsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

TOPIC = 2
BROKER = 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    client.create_topic(name, configs={"retention.ms": 1000})
    return name


def describe(
    client: RawClient, kind: int, name: str, *keys: str, version: int | None = None
) -> Any:
    resource = DescribeConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    return client.call(request, version).results[0]


def values(client: RawClient, topic: str) -> dict[str, str | None]:
    return {each.name: each.value for each in describe(client, TOPIC, topic).configs}


def change(client: RawClient, topic: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [
        IncrementalAlterConfigsRequest.Resource.Config(
            name=name, config_operation=operation, value=value
        )
        for name, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=TOPIC, resource_name=topic, configs=configs
    )
    response = client.call(IncrementalAlterConfigsRequest(resources=[resource]))
    return int(response.responses[0].error_code)


def replace(client: RawClient, topic: str, validate: bool = False, **configs: str | None) -> int:
    resource = AlterConfigsRequest.Resource(
        resource_type=TOPIC,
        resource_name=topic,
        configs=[
            AlterConfigsRequest.Resource.Config(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )
    request = AlterConfigsRequest(resources=[resource], validate_only=validate)
    return int(client.call(request).responses[0].error_code)


@pytest.mark.parametrize("version", range(1, 5))
def test_topics_are_described(client: RawClient, topic: str, version: int) -> None:
    result = describe(client, TOPIC, topic, version=version)
    assert (result.error_code, result.resource_name) == (0, topic)
    by_name = {each.name: each for each in result.configs}
    assert by_name["retention.ms"].value == "1000"
    assert by_name["retention.ms"].config_source == 1
    assert by_name["segment.bytes"].value == "1073741824"
    assert by_name["segment.bytes"].config_source == 5


def synonyms(client: RawClient, topic: str, name: str) -> list[tuple[str, str, int]]:
    (row,) = describe(client, TOPIC, topic, name).configs
    return [(each.name, each.value, int(each.source)) for each in row.synonyms]


def test_synonyms_match_kafka(client: RawClient, topic: str) -> None:
    """`tests/conformance/test_config_parity.py` compares all settings with Kafka."""
    assert synonyms(client, topic, "retention.ms") == [("retention.ms", "1000", 1)]
    assert synonyms(client, topic, "segment.bytes") == [("log.segment.bytes", "1073741824", 5)]
    for name in (
        "flush.ms",
        "follower.replication.throttled.replicas",
        "segment.jitter.ms",
        "segment.ms",
    ):
        assert synonyms(client, topic, name) == []
    change(client, topic, ("retention.ms", DELETE, None))
    assert synonyms(client, topic, "retention.ms") == []
    assert values(client, topic)["retention.ms"] == "604800000"


def test_settings_that_would_have_no_effect_do_not_exist(client: RawClient, topic: str) -> None:
    for name in RETIRED:
        assert name not in values(client, topic)
        assert change(client, topic, (name, SET, "true")) == ErrorCode.INVALID_CONFIG


def test_invalid_topic_names_are_rejected(client: RawClient) -> None:
    found = describe(client, TOPIC, "no topic!")
    assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_advertised_listeners_are_described_as_clients_see_them(
    client: RawClient, broker: BrokerProcess
) -> None:
    (row,) = describe(client, BROKER, "1", "advertised.listeners").configs
    assert row.value == f"PLAINTEXT://{broker.host}:{broker.port}"


def test_throttled_rates_are_shown_once_they_are_set(client: RawClient) -> None:
    name = "leader.replication.throttled.rate"
    assert describe(client, BROKER, "1", name).configs == []
    change_broker(client, (name, SET, "12345"))
    wait_until(lambda: describe(client, BROKER, "1", name).configs, "the rate")
    (row,) = describe(client, BROKER, "1", name).configs
    assert [(each.value, int(each.source)) for each in row.synonyms] == [("12345", 2)]
    change_broker(client, (name, DELETE, None))


def change_broker(client: RawClient, *changes: tuple[str, int, str | None]) -> None:
    configs = [
        IncrementalAlterConfigsRequest.Resource.Config(
            name=name, config_operation=operation, value=value
        )
        for name, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=BROKER, resource_name="1", configs=configs
    )
    response = client.call(IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == 0, response


def test_only_requested_keys_are_described(client: RawClient, topic: str) -> None:
    result = describe(client, TOPIC, topic, "retention.ms", "no.such.key")
    assert [each.name for each in result.configs] == ["retention.ms"]


def test_the_broker_is_described(client: RawClient) -> None:
    result = describe(client, BROKER, "1")
    assert result.error_code == 0
    assert {"num.partitions", "socket.request.max.bytes"} <= {each.name for each in result.configs}
    assert describe(client, BROKER, "77").error_code != 0
    assert describe(client, 99, "1").error_code == ErrorCode.INVALID_REQUEST


def test_unknown_topics(client: RawClient) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(client, TOPIC, "nowhere").error_code == unknown
    assert change(client, "nowhere", ("retention.ms", SET, "5")) == unknown
    assert replace(client, "nowhere", retention_ms="5") == unknown


def test_single_overrides_are_altered(client: RawClient, topic: str) -> None:
    assert change(client, topic, ("segment.ms", SET, "60000")) == 0
    assert values(client, topic)["segment.ms"] == "60000"
    assert values(client, topic)["retention.ms"] == "1000"
    assert change(client, topic, ("retention.ms", DELETE, None)) == 0
    assert values(client, topic)["retention.ms"] == "604800000"
    assert change(client, topic, ("cleanup.policy", APPEND, "compact")) == 0
    assert values(client, topic)["cleanup.policy"] == "delete,compact"
    assert change(client, topic, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert values(client, topic)["cleanup.policy"] == "compact"


def test_invalid_changes_change_nothing(client: RawClient, topic: str) -> None:
    before = values(client, topic)
    for bad in (
        ("no.such.key", SET, "1"),
        ("segment.bytes", SET, "-5"),
        ("segment.bytes", SET, "lots"),
        ("cleanup.policy", SET, "burn"),
        ("compression.type", SET, "rar"),
    ):
        assert change(client, topic, ("segment.ms", SET, "77777"), bad) == ErrorCode.INVALID_CONFIG
    assert change(client, topic, ("retention.ms", APPEND, "5")) != 0
    assert change(client, topic, ("retention.ms", 9, "5")) != 0
    assert values(client, topic) == before


def test_alter_configs_replaces_all_overrides(client: RawClient, topic: str) -> None:
    assert replace(client, topic, validate=True, segment_ms="5000") == 0
    assert values(client, topic)["retention.ms"] == "1000"
    assert replace(client, topic, segment_ms="5000") == 0
    now = values(client, topic)
    assert (now["segment.ms"], now["retention.ms"]) == ("5000", "604800000")
    assert replace(client, topic, segment_ms="x") == ErrorCode.INVALID_CONFIG


def test_a_change_takes_effect_at_once_and_survives_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("tight")
            assert client.produce("tight", values_batch(bytes(5000))).error_code == 0
            assert change(client, "tight", ("max.message.bytes", SET, "2000")) == 0
            too_large = ErrorCode.MESSAGE_TOO_LARGE
            assert client.produce("tight", values_batch(bytes(5000))).error_code == too_large
        broker.kill()
        broker.start()
        with RawClient(broker.host, broker.port) as client:
            assert client.produce("tight", values_batch(bytes(5000))).error_code == too_large
            assert client.produce("tight", values_batch(bytes(500))).error_code == 0
