"""Topics created without a replication factor, on brokers that share a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.in_process.server_set import ServerSet
from harness.process.broker_process import wait_until
from harness.raw.raw_client import RawClient
from millstream.broker.config import resource
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.model.definition import ConfigSource
from millstream.model.error import ErrorCode
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest

DEFAULT = -1
GROUP, TRANSACTION = 0, 1
#: Longer than the test: only the test ends the wait.
FOREVER_MS = "86400000"


def creation(name: str, replication_factor: int = DEFAULT) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.Topic(
        name=name, num_partitions=1, replication_factor=replication_factor
    )
    return CreateTopicsRequest(topics=[topic])


def assigned(name: str, replicas: list[int]) -> CreateTopicsRequest:
    rows = CreateTopicsRequest.Topic
    topic = rows(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[rows.Assignment(partition_index=0, broker_ids=replicas)],
    )
    return CreateTopicsRequest(topics=[topic])


def auto_create(client: RawClient, name: str) -> None:
    client.call(MetadataRequest(topics=[MetadataRequest.Topic(name=name)]))


def find(client: RawClient, key_type: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type)
    (row,) = client.call(request).coordinators
    assert row.error_code == ErrorCode.NONE, row


def config(client: RawClient, kind: int, name: str, setting: str) -> tuple[str, int]:
    """Return the value and source of a setting."""
    wanted = DescribeConfigsRequest.Resource(
        resource_type=kind, resource_name=name, configuration_keys=[setting]
    )
    (result,) = client.call(DescribeConfigsRequest(resources=[wanted])).results
    assert result.error_code == ErrorCode.NONE, result
    (row,) = result.configs
    return str(row.value), int(row.config_source)


def create_all(client: RawClient) -> list[str]:
    """Create topics in every possible way."""
    (row,) = client.call(creation("made")).topics
    assert row.error_code == ErrorCode.NONE, row
    auto_create(client, "auto")
    find(client, GROUP)
    find(client, TRANSACTION)
    return ["made", "auto", OFFSETS_TOPIC, TRANSACTIONS_TOPIC]


@pytest.mark.parametrize(("count", "replicas", "min_isr"), [(1, 1, 1), (2, 2, 1), (4, 3, 2)])
def test_replicas_follow_from_the_number_of_brokers(
    tmp_path: Path, count: int, replicas: int, min_isr: int
) -> None:
    settle = {"cluster.settle.ms": "200"}
    with ServerSet(tmp_path, count, **settle) as brokers, brokers.client(1) as client:
        for name in create_all(client):
            assert len(brokers.record(name).replicas) == replicas
            value, source = config(client, resource.TOPIC, name, "min.insync.replicas")
            assert int(value) == min_isr
            is_own = name == TRANSACTIONS_TOPIC
            assert source == (ConfigSource.DYNAMIC_TOPIC if is_own else ConfigSource.DEFAULT)
        expected = {
            "default.replication.factor": replicas,
            "min.insync.replicas": min_isr,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min_isr,
        }
        for setting, value in expected.items():
            assert config(client, resource.BROKER, "1", setting) == (
                str(value),
                ConfigSource.DEFAULT,
            )


def test_settings_override_the_defaults_by_cluster_size(tmp_path: Path) -> None:
    settings = {
        "default.replication.factor": "2",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "3",
    }
    with ServerSet(tmp_path, 3, **settings) as brokers, brokers.client(1) as client:
        names = create_all(client)
        assert [len(brokers.record(name).replicas) for name in names] == [2, 2, 1, 3]
        minimums = [config(client, resource.TOPIC, name, "min.insync.replicas") for name in names]
        static = ("1", ConfigSource.STATIC_BROKER)
        assert minimums == [static, static, static, ("3", ConfigSource.DYNAMIC_TOPIC)]
        for setting, value in settings.items():
            assert config(client, resource.BROKER, "1", setting) == (
                value,
                ConfigSource.STATIC_BROKER,
            )


def test_the_response_to_a_creation_tells_the_minimum_of_each_topic(tmp_path: Path) -> None:
    with ServerSet(tmp_path) as brokers, brokers.client(1) as client:
        found: dict[int, str] = {}
        for replicas in (1, 2, 3):
            (row,) = client.call(creation(f"with-{replicas}", replicas)).topics
            (minimum,) = [each for each in row.configs if each.name == "min.insync.replicas"]
            found[row.replication_factor] = minimum.value
            name = f"with-{replicas}"
            described = config(client, resource.TOPIC, name, "min.insync.replicas")
            assert described == (minimum.value, minimum.config_source)
        assert found == {1: "1", 2: "1", 3: "2"}


class Asked:
    """A pending request in a thread of its own."""

    def __init__(self, brokers: ServerSet, request: Callable[[RawClient], Any]) -> None:
        self.result: Any = None
        self._client = brokers.client(1)
        self._thread = threading.Thread(target=self._run, args=(request,))
        self._thread.start()

    def _run(self, request: Callable[[RawClient], Any]) -> None:
        self.result = request(self._client)

    def is_answered(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        self._client.close()
        self._thread.join()


def ask_for_everything(brokers: ServerSet) -> list[Asked]:
    """Return when broker 1 handles a request for each kind of topic."""
    asked = [
        Asked(brokers, lambda client: client.call(creation("made"))),
        Asked(brokers, lambda client: auto_create(client, "auto")),
        Asked(brokers, lambda client: find(client, GROUP)),
        Asked(brokers, lambda client: find(client, TRANSACTION)),
    ]
    requests = brokers.servers[1]._requests
    wait_until(lambda: brokers.ask(lambda: len(requests)) == len(asked), "the requests")
    return asked


def test_a_topic_is_not_made_before_the_other_brokers_have_started(tmp_path: Path) -> None:
    """A topic created before the others have started would have one replica for ever."""
    settle = {"cluster.settle.ms": FOREVER_MS}
    with ServerSet(tmp_path, 1, **settle) as brokers:
        asked = ask_for_everything(brokers)
        with brokers.client(1) as client:
            # A request with a replication factor does not wait.
            (row,) = client.call(creation("one", 1)).topics
            assert row.error_code == ErrorCode.NONE, row
        brokers.start(2)
        assert not any(each.is_answered() for each in asked)
        brokers.start(3)
        for each in asked:
            wait_until(each.is_answered, "the topic")
            each.close()
        for name in ("made", "auto", OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            assert sorted(brokers.record(name).replicas) == [1, 2, 3]


def test_a_stop_does_not_wait_for_other_brokers(tmp_path: Path) -> None:
    settings = {"cluster.settle.ms": FOREVER_MS, "shutdown.drain.timeout.ms": FOREVER_MS}
    with ServerSet(tmp_path, 1, **settings) as brokers:
        creating = Asked(brokers, lambda client: client.call(creation("made")))
        requests = brokers.servers[1]._requests
        wait_until(lambda: brokers.ask(lambda: len(requests)), "the request")
        brokers.stop(1)
        wait_until(creating.is_answered, "the response")
        creating.close()
        (row,) = creating.result.topics
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_broker_that_is_down_counts_and_gets_replicas(tmp_path: Path) -> None:
    with ServerSet(tmp_path) as brokers, brokers.client(1) as client:
        (row,) = client.call(creation("before")).topics
        assert row.replication_factor == 3
        brokers.stop(3)
        for name, factor in (("default", DEFAULT), ("given", 3)):
            (row,) = client.call(creation(name, factor)).topics
            assert row.error_code == ErrorCode.NONE, row
            record = brokers.record(name)
            assert (sorted(record.replicas), record.replicas[2]) == ([1, 2, 3], 3)
            assert sorted(record.isr) == [1, 2]
            # Two brokers are left, and still two replicas must be in sync.
            minimum = config(client, resource.TOPIC, name, "min.insync.replicas")
            assert minimum == ("2", ConfigSource.DEFAULT)
        (row,) = client.call(creation("too-many", 4)).topics
        assert row.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        factor = config(client, resource.BROKER, "1", "default.replication.factor")
        assert factor == ("3", ConfigSource.DEFAULT)
        # Replicas may be assigned to the broker by hand, but not to an unknown broker.
        (row,) = client.call(assigned("by-hand", [1, 3])).topics
        assert row.error_code == ErrorCode.NONE, row
        (row,) = client.call(assigned("nowhere", [1, 99])).topics
        assert row.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, row
        assert "broker 99" in row.error_message
        brokers.start(3)
        for name in ("default", "given"):
            wait_until(lambda name=name: len(brokers.record(name).isr) == 3, "all in sync")
