"""Changes are recorded in the audit topic and file, on one broker and on three."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.tls_process import TlsBroker, TlsHome, exchange
from harness.raw.raw_client import (
    RawClient,
    fetch_request,
    produce_request,
    records_of,
    values_batch,
)
from millstream.groups.group_coordinator import GroupCoordinator
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply
from millstream.security.audit_event import AUDIT_TOPIC, AuditEvent
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.metadata import MetadataRequest

Quotas = AlterClientQuotasRequest.Entry
Configs = IncrementalAlterConfigsRequest.Resource


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit-file") / "audit.json"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[BrokerProcess]:
    settings = {"audit.enable": "true", "audit.file": file}
    with BrokerProcess(tmp_path_factory.mktemp("audit"), settings) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as connection:
        yield connection


def events(client: RawClient) -> list[dict[str, Any]]:
    """Return all events in the audit topic."""
    response = client.call(fetch_request([(AUDIT_TOPIC, 0, 0)]), 12)
    (row,) = response.responses[0].partitions
    if row.error_code:
        return []
    found = []
    for record in records_of(row.records):
        event = json.loads(record.value or b"")
        assert record.key == event["principal"].encode()
        found.append(event)
    return found


def await_event(client: RawClient, action: str, resource: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        for event in events(client):
            if (event["action"], event["resource"]) == (action, resource):
                return event
        return None

    wait_until(find, f"{action} of {resource}")
    found = find()
    assert found is not None
    return found


def test_changes_are_recorded_with_principal_address_and_outcome(client: RawClient) -> None:
    client.create_topic("t")
    event = await_event(client, "CreateTopics", "topic:t")
    assert event["kind"] == "change"
    assert event["principal"] == "User:ANONYMOUS"
    assert (event["address"], event["client_id"]) == ("127.0.0.1", "raw")
    assert event["outcome"] == "ok"


def test_rejected_changes_are_recorded_too(client: RawClient) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.Topic(name="missing")])
    client.call(request)
    event = await_event(client, "DeleteTopics", "topic:missing")
    assert event["outcome"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_settings_are_recorded_by_name_only(client: RawClient) -> None:
    client.create_topic("configured")
    config = Configs.Config(name="retention.ms", config_operation=0, value="987654321")
    resource = Configs(resource_type=2, resource_name="configured", configs=[config])
    client.call(IncrementalAlterConfigsRequest(resources=[resource]))
    event = await_event(client, "IncrementalAlterConfigs", "topic:configured")
    assert event["detail"] == "retention.ms"
    assert "987654321" not in json.dumps(event)


def test_quotas_are_recorded(client: RawClient) -> None:
    entry = Quotas(
        entity=[Quotas.Entity(entity_type="user", entity_name="bob")],
        ops=[Quotas.Op(key="producer_byte_rate", value=1e9)],
    )
    client.call(AlterClientQuotasRequest(entries=[entry]))
    event = await_event(client, "AlterClientQuotas", "quota:user=bob")
    assert event["detail"] == "producer_byte_rate=1000000000"


def test_responses_that_come_later_are_recorded(client: RawClient) -> None:
    find = FindCoordinatorRequest(coordinator_keys=["g"])
    wait_until(lambda: not client.call(find).coordinators[0].error_code, "the coordinator")
    (row,) = client.call(DeleteGroupsRequest(groups_names=["g"])).results
    assert row.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    event = await_event(client, "DeleteGroups", "group:g")
    assert event["outcome"] == "GROUP_ID_NOT_FOUND"


def test_reading_is_not_recorded(client: RawClient) -> None:
    resource = DescribeConfigsRequest.Resource(resource_type=2, resource_name="t")
    client.call(DescribeConfigsRequest(resources=[resource]))
    client.create_topic("last")
    await_event(client, "CreateTopics", "topic:last")
    actions = [event["action"] for event in events(client) if event["resource"] != "topic:used"]
    assert {"DescribeConfigs", "Metadata"}.isdisjoint(actions)


def test_the_file_has_the_same_events(client: RawClient, file: Path) -> None:
    client.create_topic("filed")
    await_event(client, "CreateTopics", "topic:filed")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == events(client)


def test_topics_that_are_created_when_they_are_used_are_recorded(client: RawClient) -> None:
    client.call(MetadataRequest(topics=[MetadataRequest.Topic(name="used")]), 12)
    event = await_event(client, "Metadata", "topic:used")
    assert (event["outcome"], event["detail"]) == ("ok", "created when used")


# Clients with the second id may write to other internal topics.
@pytest.mark.parametrize("client_id", ["raw", "__admin_client"])
def test_clients_cannot_write_to_the_audit_topic(broker: BrokerProcess, client_id: str) -> None:
    with RawClient(broker.host, broker.port, client_id=client_id) as client:
        client.create_topic(f"before-{client_id}")
        await_event(client, "CreateTopics", f"topic:before-{client_id}")
        response = client.call(produce_request(AUDIT_TOPIC, values_batch(b"forged")), 12)
        code = response.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_audit_topic_is_internal(client: RawClient) -> None:
    client.create_topic("audited")
    await_event(client, "CreateTopics", "topic:audited")
    (topic,) = client.call(
        MetadataRequest(topics=[MetadataRequest.Topic(name=AUDIT_TOPIC)]), 12
    ).topics
    assert topic.is_internal


def test_the_metrics_count_events(broker: BrokerProcess, client: RawClient) -> None:
    before = broker.metric("millstream_audit_events_total")
    client.create_topic("counted")
    assert broker.metric("millstream_audit_events_total") == before + 1
    assert broker.metric("millstream_audit_events_dropped_total") == 0


def test_events_before_a_shutdown_are_in_the_topic_after_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"audit.enable": "true"}) as process:
        with RawClient(process.host, process.port) as connection:
            connection.create_topic("first")
            await_event(connection, "CreateTopics", "topic:first")
            connection.create_topic("second")
        process.stop()
        process.start()
        with RawClient(process.host, process.port) as connection:
            await_event(connection, "CreateTopics", "topic:second")


def test_without_auditing_there_is_no_topic(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path) as process,
        RawClient(process.host, process.port) as connection,
    ):
        connection.create_topic("t")
        names = {topic.name for topic in connection.call(MetadataRequest(topics=None), 12).topics}
        assert AUDIT_TOPIC not in names


def test_a_change_is_recorded_after_its_client_has_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[Reply[None]] = []
    monkeypatch.setattr(
        GroupCoordinator, "delete_group", lambda self, group_id, reply: replies.append(reply)
    )
    recorded: list[tuple[str, str]] = []

    class Trail:
        def record(self, event: AuditEvent, /) -> None:
            recorded.append((event.resource, event.outcome))

    with ServerSet(tmp_path, count=1, audit_enable="true") as brokers:
        brokers.services(1).audit = Trail()
        with brokers.client(1) as client:
            client.send(DeleteGroupsRequest(groups_names=["gone"]))
            wait_until(lambda: replies, "the request")
        connections = brokers.servers[1]._runtime.gate
        wait_until(lambda: not connections.connections, "the connection to be closed")
        brokers.ask(lambda: replies[0].deliver(None))
    assert recorded == [("group:gone", "ok")]


def test_every_broker_of_a_cluster_records_its_changes(tmp_path: Path) -> None:
    with ServerSet(tmp_path, audit_enable="true") as brokers:
        clients = {number: brokers.client(number) for number in (1, 2, 3)}
        for number, client in clients.items():
            client.create_topic(f"by-{number}", replication_factor=3)
        wait_until(lambda: brokers.record(AUDIT_TOPIC, 0).leader in clients, "a leader")
        leader = clients[brokers.record(AUDIT_TOPIC, 0).leader]
        for number in clients:
            event = await_event(leader, "CreateTopics", f"topic:by-{number}")
            assert event["broker"] == number
        for client in clients.values():
            client.close()


def test_logins_by_certificates_are_recorded_and_rejected_ones_too(tmp_path: Path) -> None:
    stranger = TlsHome(tmp_path / "stranger")
    stranger.client("eve")
    settings = {"audit.enable": "true", "ssl.principal.mapping.rules": "RULE:^CN=(al[^,]*),.*$/$1/"}
    with TlsBroker(tmp_path / "broker", settings, ssl_client_auth="required") as broker:
        assert exchange(broker.tls_port, broker.tls.context("alice")) == "ok"
        foreign = broker.tls.context()
        foreign.load_cert_chain(stranger.folder / "eve.pem")
        for context in (broker.tls.context(), foreign, broker.tls.context("bob")):
            assert exchange(broker.tls_port, context) != "ok"
        # A port scanner is no login.
        with socket.create_connection((broker.host, broker.tls_port)) as scanner:
            scanner.sendall(b"GET / HTTP/1.0\r\n\r\n")
            scanner.recv(1)
        with RawClient(broker.host, broker.port) as client:
            client.create_topic("t")
            await_event(client, "CreateTopics", "topic:t")
            found = [event for event in events(client) if event["action"] == "TLS"]
    assert {event["kind"] for event in found} == {"authentication"}
    assert {event["resource"] for event in found} == {"listener:SSL"}
    assert {event["address"] for event in found} == {"127.0.0.1"}
    outcomes = [(event["principal"], event["outcome"]) for event in found]
    assert outcomes == [
        ("User:alice", "ok"),
        ("", "no_certificate"),
        ("", "certificate"),
        ("", "principal"),
    ]
    assert all(event["detail"] for event in found[1:])
