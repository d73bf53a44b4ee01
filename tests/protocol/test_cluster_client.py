"""The cluster client on real brokers: metadata, leaders, coordinators, offsets and retries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.in_process.server_set import HOST, ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import values_batch
from millstream.metadata.topic_change import NewTopic
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.process.port import free_port
from millstream.protocol.cluster_client import GROUP, ClusterClient
from millstream.protocol.connection_setting import Address, ConnectionSettings
from millstream.protocol.error import ConnectionLost, Unavailable
from millstream.wire.messages.list_offsets import EARLIEST, LATEST

LEADERS = [1, 2, 2]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSet]:
    folder: Path = tmp_path_factory.mktemp("cluster-client")
    with ServerSet(folder, 2, min_insync_replicas="1") as running:
        catalog = running.services(1).catalog
        running.run(catalog.create_topics([NewTopic("t", [[leader] for leader in LEADERS])]))
        yield running


def settings_of(*addresses: Address) -> ConnectionSettings:
    return ConnectionSettings(addresses, deadline_ms=60_000, backoff_ms=5)


@pytest.fixture
def settings(brokers: ServerSet) -> ConnectionSettings:
    return settings_of(Address(HOST, brokers.servers[1].ports["PLAINTEXT"]))


@pytest.fixture
def client(settings: ConnectionSettings) -> Iterator[ClusterClient]:
    with ClusterClient(settings) as client:
        yield client


def nowhere() -> Address:
    return Address(HOST, free_port())


def test_metadata_name_brokers_and_leaders(client: ClusterClient) -> None:
    topic = client.topic("t")
    assert [topic.leaders[number] for number in range(3)] == LEADERS
    assert not topic.is_internal
    assert client.broker_ids == [1, 2]
    assert "t" in {each.name for each in client.topics()}


def test_an_unknown_topic_is_an_error_or_left_out(client: ClusterClient) -> None:
    with pytest.raises(BrokerError, match="asking for topic unknown") as caught:
        client.topics(["t", "unknown"])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each.name for each in client.existing_topics(["unknown", "t"])] == ["t"]


def test_a_connection_to_the_leader_is_reused(client: ClusterClient) -> None:
    first, second = client.leader_connection("t", 0), client.leader_connection("t", 1)
    assert first is not second
    assert client.leader_connection("t", 2) is second
    second.close()
    assert client.leader_connection("t", 2) is not second


def test_an_unknown_partition_or_broker_is_an_error(client: ClusterClient) -> None:
    with pytest.raises(BrokerError, match="topic t has 3 partitions, none of them 3"):
        client.leader_connection("t", 3)
    with pytest.raises(BrokerError, match="broker 9 is not alive"):
        client.broker_connection(9)


def test_offsets_come_from_every_leader(brokers: ServerSet, client: ClusterClient) -> None:
    for number, leader in enumerate(LEADERS):
        with brokers.client(leader) as writer:
            for _ in range(number):
                assert writer.produce("t", values_batch(b"v"), number).error_code == 0
    keys = [TopicPartition("t", number) for number in range(3)]
    latest = client.list_offsets(dict.fromkeys(keys, LATEST), is_committed=True)
    assert latest == {key: key.partition for key in keys}
    earliest = client.list_offsets(dict.fromkeys(keys, EARLIEST))
    assert earliest == dict.fromkeys(keys, 0)


def test_a_coordinator_is_looked_up_once_and_after_it_was_forgotten(client: ClusterClient) -> None:
    found = client.attempt("find the coordinator", lambda: client.coordinator("g", GROUP))
    assert found.node_id in (1, 2)
    assert client.coordinator("g", GROUP) is found
    assert client.coordinator_connection("g", GROUP).address == found.address
    client.forget_leaders()
    again = client.attempt("find the coordinator", lambda: client.coordinator("g", GROUP))
    assert again == found
    assert again is not found


def test_a_bootstrap_address_without_a_broker_is_skipped(settings: ConnectionSettings) -> None:
    with ClusterClient(settings_of(nowhere(), *settings.bootstrap)) as client:
        assert client.topic("t").name == "t"


def test_no_broker_before_the_deadline_is_unavailable() -> None:
    settings = dataclasses.replace(settings_of(nowhere()), deadline_ms=30)
    with ClusterClient(settings) as client:
        with pytest.raises(ConnectionLost):
            client.any_connection()
        with pytest.raises(Unavailable, match=r"could not get metadata within 30 ms"):
            client.topics()


def test_retriable_errors_are_retried_and_others_are_not(client: ClusterClient) -> None:
    errors = [BrokerError(ErrorCode.NOT_COORDINATOR), ConnectionLost("the connection broke")]

    def fail_at_first() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert client.attempt("do it", fail_at_first) == "done"

    errors[:] = [BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION)]
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        client.attempt("do it", fail_at_first)


def test_a_moved_leader_is_found_again(brokers: ServerSet, client: ClusterClient) -> None:
    catalog = brokers.services(1).catalog
    brokers.run(catalog.create_topics([NewTopic("moving", [[1, 2]])]))
    key = TopicPartition("moving", 0)
    assert client.list_offsets({key: LATEST}) == {key: 0}
    assert client.topic("moving").leaders[0] == 1
    brokers.lead("moving", 0, 2)
    wait_until(lambda: brokers.record("moving").leader == 2, "the election")
    assert client.list_offsets({key: LATEST}) == {key: 0}
    assert client.topic("moving").leaders[0] == 2
