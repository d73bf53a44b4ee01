"""Quotas over the wire: described, altered and enforced."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.raw.raw_client import (
    RawClient,
    encode_frame,
    fetch_request,
    produce_request,
    values_batch,
)
from millstream.model.error import ErrorCode
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from millstream.wire.messages.create_partitions import CreatePartitionsRequest
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.describe_client_quotas import DescribeClientQuotasRequest
from millstream.wire.messages.metadata import MetadataRequest

Entry = AlterClientQuotasRequest.Entry
Component = DescribeClientQuotasRequest.Component
_numbers = count(1)


class QuotaClient(RawClient):
    """A client with an id of its own: the broker remembers what a client id has used."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.client_id = f"client-{next(_numbers)}"
        #: The quota entity of the client.
        self.entity = {"client-id": self.client_id}

    def _frame(self, request: Any, version: int) -> bytes:
        super()._frame(request, version)
        return encode_frame(request, version, self._correlation_id, self.client_id)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Short windows: a client that is throttled is soon below its quota again.
    settings = {"quota.window.num": 2, "controller.quota.window.num": 2}
    with BrokerProcess(tmp_path_factory.mktemp("quota"), settings) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[QuotaClient]:
    with QuotaClient(broker.host, broker.port) as connection:
        yield connection
    with RawClient(broker.host, broker.port) as connection:
        for entity, quotas in described(connection).items():
            alter(connection, dict(entity), dict.fromkeys(quotas))


def alter(
    client: RawClient,
    entity: Mapping[str, str | None],
    changes: Mapping[str, float | None],
    version: int = 1,
    *,
    validate: bool = False,
) -> Any:
    entry = Entry(
        entity=[Entry.Entity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            Entry.Op(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes.items()
        ],
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=validate)
    (row,) = client.call(request, version).entries
    return row


def described(
    client: RawClient, *components: Component, strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    request = DescribeClientQuotasRequest(components=list(components), strict=strict)
    response = client.call(request, version)
    assert response.error_code == 0, response.error_message
    return {
        tuple((each.entity_type, each.entity_name) for each in row.entity): {
            each.key: each.value for each in row.values
        }
        for row in response.entries
    }


def scrape(broker: BrokerProcess) -> str:
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=10) as response:
        return str(response.read().decode())


# AlterClientQuotas and DescribeClientQuotas


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed_in_every_version(
    client: RawClient, version: int
) -> None:
    user = {"user": "alice"}
    row = alter(client, user, {"producer_byte_rate": 1024, "request_percentage": 12.5}, version)
    assert row.error_code == 0
    assert [(each.entity_type, each.entity_name) for each in row.entity] == [("user", "alice")]
    key = (("user", "alice"),)
    assert described(client, version=version) == {
        key: {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    }
    assert alter(client, user, {"producer_byte_rate": None}, version).error_code == 0
    assert described(client, version=version) == {key: {"request_percentage": 12.5}}
    assert alter(client, user, {"request_percentage": None}, version).error_code == 0
    assert described(client, version=version) == {}


def test_filters(client: QuotaClient) -> None:
    rate = {"consumer_byte_rate": 1000.0}
    for entity in (
        {"user": "a"},
        {"user": None},
        {"user": "a", "client-id": "x"},
        {"user": "a", "client-id": None},
        {"client-id": "x"},
    ):
        assert alter(client, entity, rate).error_code == 0
    a, a_x = (("user", "a"),), (("client-id", "x"), ("user", "a"))
    a_default = (("client-id", None), ("user", "a"))
    user_a = Component(entity_type="user", match_type=0, match="a")
    assert described(client, user_a).keys() == {a, a_x, a_default}
    assert described(client, user_a, strict=True).keys() == {a}
    any_client = Component(entity_type="client-id", match_type=2)
    assert described(client, user_a, any_client).keys() == {a_x, a_default}
    default_user = Component(entity_type="user", match_type=1)
    assert described(client, default_user).keys() == {(("user", None),)}
    assert len(described(client)) == 5
    assert described(client, strict=True) == {}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([Component(entity_type="")], ErrorCode.INVALID_REQUEST),
        ([Component(entity_type="group", match_type=2)], ErrorCode.UNSUPPORTED_VERSION),
        ([Component(entity_type="user", match_type=9)], ErrorCode.INVALID_REQUEST),
        ([Component(entity_type="user", match_type=0)], ErrorCode.INVALID_REQUEST),
        ([Component(entity_type="user", match_type=1, match="a")], ErrorCode.INVALID_REQUEST),
        ([Component(entity_type="user", match_type=2)] * 2, ErrorCode.INVALID_REQUEST),
        (
            [
                Component(entity_type="user", match_type=2),
                Component(entity_type="ip", match_type=2),
            ],
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_filters_that_are_not_valid(
    client: RawClient, components: list[Component], code: ErrorCode
) -> None:
    response = client.call(DescribeClientQuotasRequest(components=components))
    assert response.error_code == code
    assert response.error_message


@pytest.mark.parametrize(
    ("entity", "quotas"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"group": "g"}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"user": "a", "ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"user": "a"}, {"connection_creation_rate": 1.0}),
        ({"user": "a"}, {"producer_byte_rate": -1.0}),
        ({"user": "a"}, {"producer_byte_rate": 1.5}),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"ip": "no address"}, {"connection_creation_rate": 1.0}),
    ],
)
def test_changes_that_are_not_valid(
    client: RawClient, entity: dict[str, str | None], quotas: dict[str, float]
) -> None:
    row = alter(client, entity, quotas)
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert row.error_message
    assert described(client) == {}


def test_an_entity_is_changed_as_a_whole_or_not_at_all(client: QuotaClient) -> None:
    row = alter(client, {"user": "a"}, {"producer_byte_rate": 10.0, "no_such_quota": 1.0})
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert described(client) == {}


def test_validation_changes_nothing(client: QuotaClient) -> None:
    assert alter(client, client.entity, {"producer_byte_rate": 10.0}, validate=True).error_code == 0
    assert described(client) == {}


# Enforcement


def test_a_producer_above_its_quota_is_throttled_and_not_read(client: QuotaClient) -> None:
    client.create_topic("produced")
    assert alter(client, client.entity, {"producer_byte_rate": 10_000.0}).error_code == 0
    batch = values_batch(bytes(15_000))
    response = client.call(produce_request("produced", batch), 12)
    began = time.monotonic()
    # One window of 1 s and 15 kB: half a second above the quota.
    assert 300 <= response.throttle_time_ms <= 700
    assert response.responses[0].partition_responses[0].error_code == 0
    client.call(MetadataRequest(topics=[]), 12)
    assert time.monotonic() - began >= 0.25


def test_a_producer_below_its_quota_is_not_throttled(client: QuotaClient) -> None:
    client.create_topic("slowly-produced")
    alter(client, client.entity, {"producer_byte_rate": 1_000_000.0})
    response = client.call(produce_request("slowly-produced", values_batch(bytes(1000))), 12)
    assert response.throttle_time_ms == 0


def test_a_producer_without_acknowledgements_is_not_read_either(client: QuotaClient) -> None:
    client.create_topic("fired")
    alter(client, client.entity, {"producer_byte_rate": 10_000.0})
    batch = values_batch(bytes(15_000))
    client.send(produce_request("fired", batch, acks=0), 12, has_response=False)
    began = time.monotonic()
    client.call(MetadataRequest(topics=[]), 12)
    assert time.monotonic() - began >= 0.25


def test_another_client_is_not_affected(broker: BrokerProcess, client: QuotaClient) -> None:
    client.create_topic("shared")
    alter(client, client.entity, {"producer_byte_rate": 1_000.0})
    throttled = client.call(produce_request("shared", values_batch(bytes(3000))), 12)
    assert throttled.throttle_time_ms > 0
    with RawClient(broker.host, broker.port) as other:
        frame = encode_frame(produce_request("shared", values_batch(bytes(3000))), 12, 1, "other")
        began = time.monotonic()
        other.send_raw(frame)
        other.receive_frame()
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_fetch_above_the_quota_gets_nothing_and_the_records_later(
    client: QuotaClient, epoch: int
) -> None:
    topic = f"fetched{epoch}"
    client.create_topic(topic)
    for _ in range(4):
        client.call(produce_request(topic, values_batch(bytes(5000))), 12)
    alter(client, client.entity, {"consumer_byte_rate": 6_000.0})
    request = fetch_request([(topic, 0, 0)], session_epoch=epoch)
    first = client.call(request, 12)
    assert first.throttle_time_ms == 0
    assert first.responses[0].partitions[0].records
    if first.session_id:
        request = fetch_request([(topic, 0, 0)], session_id=first.session_id, session_epoch=1)
    second = client.call(request, 12)
    assert second.throttle_time_ms > 0
    assert not second.responses
    assert second.session_id == first.session_id
    if second.session_id:
        request = fetch_request([(topic, 0, 0)], session_id=first.session_id, session_epoch=2)
    third = client.call(request, 12)
    assert third.throttle_time_ms == 0
    assert third.responses[0].partitions[0].records


def test_a_full_fetch_that_is_throttled_opens_no_session(client: QuotaClient) -> None:
    client.create_topic("sessionless")
    client.call(produce_request("sessionless", values_batch(bytes(5000))), 12)
    alter(client, client.entity, {"consumer_byte_rate": 6_000.0})
    request = fetch_request([("sessionless", 0, 0)], session_epoch=0)
    assert client.call(request, 12).session_id
    throttled = client.call(request, 12)
    assert throttled.throttle_time_ms > 0
    assert not throttled.session_id


def test_a_batch_larger_than_the_quota_allows_at_once_is_delivered(client: QuotaClient) -> None:
    client.create_topic("large")
    client.call(produce_request("large", values_batch(bytes(50_000))), 12)
    alter(client, client.entity, {"consumer_byte_rate": 1_000.0})
    response = client.call(fetch_request([("large", 0, 0)]), 12)
    assert response.responses[0].partitions[0].records


def test_request_time_is_limited(client: QuotaClient) -> None:
    alter(client, client.entity, {"request_percentage": 0.01})
    wait_until(
        lambda: client.call(MetadataRequest(topics=None), 12).throttle_time_ms > 0, "throttling"
    )


def test_a_pipelined_burst_waits_for_the_end_of_the_throttling(client: QuotaClient) -> None:
    client.create_topic("burst")
    alter(client, client.entity, {"producer_byte_rate": 10_000.0})
    requests = [produce_request("burst", values_batch(bytes(12_000))) for _ in range(3)]
    began = time.monotonic()
    client.send_together(requests, 12)
    throttles = [client.receive().throttle_time_ms for _ in requests]
    assert all(throttle > 0 for throttle in throttles)
    assert time.monotonic() - began >= 1


def new(name: str, partitions: int) -> CreateTopicsRequest.Topic:
    return CreateTopicsRequest.Topic(name=name, num_partitions=partitions, replication_factor=1)


def test_mutations_above_the_quota_are_rejected(client: QuotaClient) -> None:
    alter(client, client.entity, {"controller_mutation_rate": 2.0})
    request = CreateTopicsRequest(topics=[new("m1", 5), new("m2", 1)])
    response = client.call(request, 7)
    codes = {row.name: row.error_code for row in response.topics}
    assert codes == {"m1": 0, "m2": ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    assert 0 < response.throttle_time_ms <= 1000
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name="m1")])
    assert client.call(request, 6).responses[0].error_code == 0


def test_old_clients_are_throttled_after_their_mutations(client: QuotaClient) -> None:
    alter(client, client.entity, {"controller_mutation_rate": 2.0})
    response = client.call(CreateTopicsRequest(topics=[new("o1", 5), new("o2", 1)]), 5)
    assert [row.error_code for row in response.topics] == [0, 0]
    assert response.throttle_time_ms > 0
    grown = CreatePartitionsRequest.Topic(name="o2", count=4, assignments=None)
    response = client.call(CreatePartitionsRequest(topics=[grown]), 2)
    assert response.results[0].error_code == 0
    assert response.throttle_time_ms > 0
    response = client.call(CreatePartitionsRequest(topics=[grown]), 3)
    response = client.call(DeleteTopicsRequest(topic_names=["o1", "o2"]), 4)
    assert [row.error_code for row in response.responses] == [0, 0]
    assert response.throttle_time_ms > 0


def test_topics_that_are_created_when_used_count_as_mutations(client: QuotaClient) -> None:
    """Otherwise a client could create topics without limit by asking for them."""
    alter(client, client.entity, {"controller_mutation_rate": 1.0})
    names = [f"used-{number}" for number in range(20)]
    wanted = [MetadataRequest.Topic(name=name) for name in [*names, "not/a/name"]]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=True)
    response = client.call(request, 12)
    codes = [row.error_code for row in response.topics]
    # As in Kafka, topics above the quota are still unknown. Clients ask for them again.
    assert set(codes[:-1]) == {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert codes[0] == 0
    assert codes[-1] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert response.throttle_time_ms > 0
    # The connection is not read meanwhile, so the quota admits a topic then.
    again = client.call(MetadataRequest(topics=[wanted[-2]], allow_auto_topic_creation=True), 12)
    assert [row.error_code for row in again.topics] == [0]


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"quota.window.num": 2}) as process:
        with RawClient(process.host, process.port) as connection:
            connection.create_topic("t")
            alter(connection, {"client-id": "raw"}, {"producer_byte_rate": 1_000.0})
        process.stop()
        process.start()
        with RawClient(process.host, process.port) as connection:
            response = connection.call(produce_request("t", values_batch(bytes(3000))), 12)
            assert response.throttle_time_ms > 0


def test_the_metrics_name_users_and_client_ids(broker: BrokerProcess, client: QuotaClient) -> None:
    client.create_topic("measured")
    alter(client, client.entity, {"producer_byte_rate": 1_000.0})
    client.call(produce_request("measured", values_batch(bytes(3000))), 12)
    text = scrape(broker)
    labels = f'{{user="",client_id="{client.client_id}"}}'
    assert f"millstream_client_produce_bytes_total{labels}" in text
    assert f"millstream_client_produce_throttle_seconds_total{labels}" in text


# Connections


def test_an_address_above_its_rate_of_connections_is_closed(
    broker: BrokerProcess, client: QuotaClient
) -> None:
    source = "127.0.0.3"
    assert alter(client, {"ip": source}, {"connection_creation_rate": 1.0}).error_code == 0
    with RawClient(broker.host, broker.port, source=source) as first:
        assert first.call(MetadataRequest(topics=[]), 12).brokers
        with RawClient(broker.host, broker.port, source=source) as second:
            assert second.is_closed_within(5)
    assert 'refused_total{reason="connection_creation_rate"}' in scrape(broker)
