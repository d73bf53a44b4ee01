"""Client metrics over the wire: subscriptions as config resources, and requests of clients."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import otlp
from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import Closed, RawClient
from millstream.model.error import ErrorCode
from millstream.testing.broker import LocalBroker
from millstream.wire.messages.alter_configs import AlterConfigsRequest
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest
from millstream.wire.messages.push_telemetry import PushTelemetryRequest

CLIENT_METRICS = 16
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC, DEFAULT = 7, 5
TELEMETRY_KEYS = {71, 72}
BYTES_MAX = 5000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"telemetry.max.bytes": BYTES_MAX, "metrics.client.labels.max": 50}
    with BrokerProcess(tmp_path_factory.mktemp("telemetry"), settings) as process:
        yield process
        process.stop()
        assert "Traceback" not in process.log_text(), process.log_text()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    """A client; after the test all subscriptions are deleted."""
    with RawClient(broker.host, broker.port) as connection:
        yield connection
        for name in listed(connection):
            alter(connection, name, *((each, DELETE, None) for each in shown(connection, name)))
        assert listed(connection) == []


def alter(
    client: RawClient,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
) -> ErrorCode:
    configs = [
        IncrementalAlterConfigsRequest.Resource.Config(
            name=setting, config_operation=operation, value=value
        )
        for setting, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=CLIENT_METRICS, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (row,) = client.call(request).responses
    return ErrorCode(row.error_code)


def subscribe(client: RawClient, name: str, **configs: str) -> None:
    changes = [(each.replace("_", "."), SET, value) for each, value in configs.items()]
    assert alter(client, name, *changes) is ErrorCode.NONE


def describe(client: RawClient, name: str, *keys: str) -> Any:
    resource = DescribeConfigsRequest.Resource(
        resource_type=CLIENT_METRICS, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.call(request).results
    return result


def shown(client: RawClient, name: str, *keys: str) -> dict[str, tuple[str, int]]:
    result = describe(client, name, *keys)
    assert result.error_code == 0
    for config in result.configs:
        expected = [] if config.config_source == DEFAULT else [(config.name, config.value, DYNAMIC)]
        assert [(each.name, each.value, each.source) for each in config.synonyms] == expected
    return {each.name: (each.value, each.config_source) for each in result.configs}


def listed(client: RawClient, version: int = 1) -> list[str]:
    request = ListConfigResourcesRequest(resource_types=[CLIENT_METRICS] if version else [])
    response = client.call(request, version)
    assert response.error_code == 0
    return [each.resource_name for each in response.config_resources]


def get(client: RawClient, instance_id: bytes = bytes(16)) -> Any:
    return client.call(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id))


def push(client: RawClient, subscription: Any, *metrics: Any, **fields: Any) -> ErrorCode:
    request = PushTelemetryRequest(
        client_instance_id=subscription.client_instance_id,
        subscription_id=subscription.subscription_id,
        metrics=fields.pop("payload", otlp.payload(*metrics)),
        **fields,
    )
    return ErrorCode(client.call(request).error_code)


def scrape(broker: BrokerProcess) -> str:
    url = f"http://{broker.host}:{broker.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
    return text


def api_keys(client: RawClient) -> set[int]:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")
    return {each.api_key for each in client.call(request).api_keys}


def test_a_subscription_is_set_shown_listed_and_deleted(client: RawClient) -> None:
    defaults = {"interval.ms": ("300000", 5), "match": ("", 5), "metrics": ("", 5)}
    assert shown(client, "s") == defaults
    subscribe(client, "s", metrics=" a , b ", interval_ms="1000")
    expected = {**defaults, "interval.ms": ("1000", 7), "metrics": ("a,b", 7)}
    assert shown(client, "s") == expected
    assert shown(client, "s", "match", "nope") == {"match": ("", 5)}
    assert listed(client) == listed(client, 0) == ["s"]
    assert alter(client, "s", ("interval.ms", DELETE, None)) is ErrorCode.NONE
    assert shown(client, "s")["interval.ms"] == ("300000", 5)
    assert alter(client, "s", ("metrics", DELETE, None)) is ErrorCode.NONE
    assert listed(client) == []


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("", ("interval.ms", SET, "1000"), ErrorCode.INVALID_REQUEST),
        ("s", ("interval.ms", SET, "5"), ErrorCode.INVALID_REQUEST),
        ("s", ("interval.ms", SET, None), ErrorCode.INVALID_REQUEST),
        ("s", ("interval.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        ("s", ("nope", SET, "x"), ErrorCode.INVALID_REQUEST),
        ("s", ("match", SET, "nope=x"), ErrorCode.INVALID_CONFIG),
        ("s", ("metrics", APPEND, "x"), ErrorCode.INVALID_CONFIG),
        ("s", ("metrics", SUBTRACT, "x"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_subscriptions_are_rejected(
    client: RawClient, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    for validate_only in (True, False):
        assert alter(client, name, change, validate_only=validate_only) is code
    assert listed(client) == []


def test_validation_changes_nothing(client: RawClient) -> None:
    change = ("interval.ms", SET, "1000")
    assert alter(client, "s", change, validate_only=True) is ErrorCode.NONE
    assert listed(client) == []


def test_a_subscription_needs_a_name(client: RawClient) -> None:
    assert describe(client, "").error_code == ErrorCode.INVALID_REQUEST


def test_alter_configs_replaces_everything(client: RawClient) -> None:
    def replace(**configs: str) -> int:
        resource = AlterConfigsRequest.Resource(
            resource_type=CLIENT_METRICS,
            resource_name="s",
            configs=[
                AlterConfigsRequest.Resource.Config(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ],
        )
        (row,) = client.call(AlterConfigsRequest(resources=[resource])).responses
        return int(row.error_code)

    assert replace(metrics="a", interval_ms="1000") == 0
    assert replace(match="client_id=x") == 0
    assert shown(client, "s")["metrics"] == ("", 5)
    assert replace(interval_ms="1") == ErrorCode.INVALID_REQUEST
    assert listed(client) == ["s"]
    assert replace() == 0
    assert listed(client) == []


def test_the_telemetry_apis_are_listed(client: RawClient) -> None:
    assert api_keys(client) >= TELEMETRY_KEYS


def test_a_broker_without_metrics_has_no_telemetry_apis() -> None:
    with LocalBroker(settings={"http.listen": ""}) as local:
        host, _, port = local.bootstrap_servers.partition(":")
        with RawClient(host, int(port)) as client:
            assert api_keys(client).isdisjoint(TELEMETRY_KEYS)
            subscribe(client, "s", metrics="*")
            assert listed(client) == ["s"], "other brokers may serve metrics"
            with pytest.raises(Closed):
                get(client)


def test_without_subscriptions_no_metrics_are_requested(client: RawClient) -> None:
    response = get(client)
    assert response.error_code == 0
    assert (response.requested_metrics, response.push_interval_ms) == ([], 300_000)
    assert response.accepted_compression_types == [4, 3, 1, 2]
    assert response.telemetry_max_bytes == BYTES_MAX
    assert not response.delta_temporality
    assert (
        get(client, response.client_instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    )


def test_subscriptions_match_attributes_of_clients(
    broker: BrokerProcess, client: RawClient
) -> None:
    subscribe(client, "s", metrics="a", match="client_software_name=raw,client_id=raw")
    assert get(client).requested_metrics == [], "it has not said which software it is"
    api_keys(client)
    assert get(client).requested_metrics == ["a"]
    with RawClient(broker.host, broker.port) as other:
        assert get(other).requested_metrics == []


def test_pushed_metrics_are_exported(broker: BrokerProcess, client: RawClient) -> None:
    subscribe(client, "s", metrics="*", interval_ms="100")
    api_keys(client)
    subscription = get(client)
    assert subscription.requested_metrics == ["*"]
    total = otlp.counter("org.apache.kafka.producer.n.total", otlp.point(5, topic="t"))
    assert push(client, subscription, total, terminating=True) is ErrorCode.NONE
    (row,) = [each for each in scrape(broker).splitlines() if each.startswith("kafka_client_")]
    assert row.startswith("kafka_client_producer_n_total{")
    assert row.endswith(" 5")
    for label in ('client_id="raw"', 'client_software_name="raw"', 'topic="t"'):
        assert label in row
    assert push(client, subscription, total) is ErrorCode.INVALID_REQUEST
    assert broker.metric("millstream_client_metrics_pushes_total") >= 1
    rejected = 'millstream_client_metrics_rejected_total{error="INVALID_REQUEST"}'
    assert f"{rejected} 1" in scrape(broker)


def test_pushes_that_are_rejected(client: RawClient) -> None:
    subscribe(client, "s", metrics="*", interval_ms="3600000")
    subscription = get(client)
    large = {"payload": bytes(BYTES_MAX + 1)}
    assert push(client, subscription, **large) is ErrorCode.TELEMETRY_TOO_LARGE
    assert push(client, subscription) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    subscription.client_instance_id = b"another one of 16"[:16]
    assert push(client, subscription) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    subscription = get(client, subscription.client_instance_id)
    assert push(client, subscription, compression_type=9) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    subscription = get(client, subscription.client_instance_id)
    assert push(client, subscription, payload=b"\x0a\x05") is ErrorCode.INVALID_RECORD
    assert push(client, get(client), payload=b"") is ErrorCode.NONE
    subscription.client_instance_id = bytes(16)
    assert push(client, subscription) is ErrorCode.INVALID_REQUEST


def test_series_are_limited_and_removed_with_their_client(
    broker: BrokerProcess, client: RawClient
) -> None:
    subscribe(client, "s", metrics="*", interval_ms="100")
    points = [otlp.point(number, topic=str(number)) for number in range(40)]
    assert push(client, get(client), otlp.gauge("first", *points)) is ErrorCode.NONE
    assert broker.metric("kafka_client_first") == sum(range(40))
    with RawClient(broker.host, broker.port) as other:
        assert push(other, get(other), otlp.gauge("second", *points)) is ErrorCode.NONE
        assert broker.metric("millstream_metrics_clients_folded") == 1
        assert "kafka_client_second" not in scrape(broker)
    wait_until(
        lambda: broker.metric("millstream_metrics_clients_folded") == 0, "the client to be gone"
    )


def test_a_changed_subscription_reaches_a_client_at_its_next_push(client: RawClient) -> None:
    subscribe(client, "s", metrics="a", interval_ms="3600000")
    subscription = get(client)
    subscribe(client, "s", metrics="b")

    def has_changed() -> bool:
        # The change is in the store, and this broker applies it a moment later.
        with_old_id = push(client, subscription)
        return with_old_id is ErrorCode.UNKNOWN_SUBSCRIPTION_ID

    wait_until(has_changed, "the change to arrive")
    assert get(client, subscription.client_instance_id).requested_metrics == ["b"]


def test_subscriptions_survive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        with RawClient(process.host, process.port) as client:
            subscribe(client, "s", metrics="a", interval_ms="1000")
        process.kill()
        process.start()
        with RawClient(process.host, process.port) as client:
            assert listed(client) == ["s"]
            response = get(client)
            assert (response.requested_metrics, response.push_interval_ms) == (["a"], 1000)
