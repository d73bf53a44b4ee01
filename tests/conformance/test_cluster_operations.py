"""Cluster operations with the tools of operators: `millstream`, librdkafka, and Kafka's own.

Three broker processes on an etcd. The tests share them and run in this order; each leaves a healthy
cluster.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from harness.process.broker_process import wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_client import RawClient
from kafka_tools.runner import ToolRunner
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.xdist_group("cluster-operations")

SECONDS_MAX = 90.0
SETTINGS = {
    "leader.imbalance.check.interval.seconds": 1,
    # A broker that was away is brought back to what it should lead; a single partition is not.
    "leader.imbalance.per.broker.percentage": 60,
    "replica.fetch.max.bytes": 4096,
    "replica.fetch.response.max.bytes": 8192,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 100,
}
RACKS = ("a", "a", "b")
SLOW = 3000

Admin = Callable[[], AdminClient]
Millstream = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    folder = tmp_path_factory.mktemp("operations")
    with ProcessCluster(folder, 3, SETTINGS, racks=RACKS) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: ProcessCluster) -> Admin:
    """Create a client: an old one whose controller is dead takes long to find another."""
    clients: list[AdminClient] = []

    def make() -> AdminClient:
        # Keep the client: a response to a client that is closed never arrives.
        clients.append(AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}))
        return clients[-1]

    return make


@pytest.fixture
def millstream(cluster: ProcessCluster) -> Millstream:
    """Run `millstream ARGUMENTS... --json` and return its output."""

    def run(*arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
        program = str(Path(sys.executable).with_name("millstream"))
        done = subprocess.run(
            [program, *arguments, "--json", "-b", cluster.bootstrap],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode in codes, done
        return json.loads(done.stdout)

    return run


def wait_for(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(SECONDS_MAX)


def create(admin: Admin, name: str, assignment: list[list[int]], **configs: str) -> None:
    topic = NewTopic(name, len(assignment), replica_assignment=assignment, config=configs)
    wait_for(admin().create_topics([topic]))


def produce(cluster: ProcessCluster, topic: str, count: int, partitions: int = 1) -> None:
    """Produce small batches of 1 KB records evenly to the partitions; all are acknowledged."""
    failures: list[object] = []
    settings = {"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 2, "log_level": 0}
    producer = Producer(settings)
    for number in range(count):
        producer.produce(
            topic,
            b"%d" % number + b"x" * 1000,
            partition=number % partitions,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0
    assert failures == []


def reorder(cluster: ProcessCluster, topic: str, replicas: list[int]) -> None:
    """Give a topic's first partition the same replicas in another order of preference."""
    row = AlterPartitionReassignmentsRequest.Topic.Partition(partition_index=0, replicas=replicas)
    wanted = AlterPartitionReassignmentsRequest.Topic(name=topic, partitions=[row])
    with RawClient(cluster[1].host, cluster[1].port) as client:
        response = client.call(AlterPartitionReassignmentsRequest(topics=[wanted]))
    assert [row.error_code for row in response.responses[0].partitions] == [0]


def call(cluster: ProcessCluster, request: Any) -> Any:
    """Send a request to a running broker."""
    broker = next(each for each in cluster if each.is_alive())
    with RawClient(broker.host, broker.port) as client:
        return client.call(request)


def metadata_of(cluster: ProcessCluster) -> Any:
    return call(cluster, MetadataRequest(topics=None, allow_auto_topic_creation=False))


def partitions_of(cluster: ProcessCluster, topic: str) -> list[Any]:
    """Return the partitions in order; none while the broker does not know the topic yet."""
    found = [row for row in metadata_of(cluster).topics if row.name == topic]
    rows = [row for each in found for row in each.partitions]
    return sorted(rows, key=lambda row: row.partition_index)


def until_led(cluster: ProcessCluster, topic: str, leaders: list[int]) -> None:
    wait_until(lambda: leaders_of(cluster, topic) == leaders, f"leaders of {topic}", SECONDS_MAX)


def until_placed(cluster: ProcessCluster, topic: str, replicas: list[list[int]]) -> None:
    wait_until(
        lambda: [sorted(row.replica_nodes) for row in partitions_of(cluster, topic)] == replicas,
        f"replicas of {topic}",
        SECONDS_MAX,
    )


def until_gone(cluster: ProcessCluster, broker_id: int) -> None:
    """Wait until the other brokers have noticed, and one of them is the controller."""
    wait_until(
        lambda: broker_id not in [each.node_id for each in metadata_of(cluster).brokers],
        f"broker {broker_id} to be taken for dead",
        SECONDS_MAX,
    )


def until_whole(cluster: ProcessCluster) -> None:
    wait_until(lambda: is_whole(cluster), "a whole cluster", SECONDS_MAX)


def leaders_of(cluster: ProcessCluster, topic: str) -> list[int]:
    return [row.leader_id for row in partitions_of(cluster, topic)]


def metric(cluster: ProcessCluster, name: str) -> float:
    """Return the sum of a metric over all running brokers."""
    return sum(each.metric(f"millstream_{name}") for each in cluster if each.is_alive())


def is_whole(cluster: ProcessCluster) -> bool:
    metadata = metadata_of(cluster)
    rows = [row for topic in metadata.topics for row in topic.partitions]
    return len(metadata.brokers) == 3 and all(
        row.leader_id >= 0 and set(row.isr_nodes) == set(row.replica_nodes) for row in rows
    )


def controller_of(cluster: ProcessCluster) -> int:
    return int(call(cluster, DescribeClusterRequest()).controller_id)


def test_replicas_are_spread_over_racks(admin: Admin, cluster: ProcessCluster) -> None:
    wait_for(admin().create_topics([NewTopic("spread", 6, 2)]))
    wait_for(admin().create_partitions([NewPartitions("spread", 10)]))
    wait_until(lambda: len(partitions_of(cluster, "spread")) == 10, "partitions", SECONDS_MAX)
    for row in partitions_of(cluster, "spread"):
        assert {RACKS[broker - 1] for broker in row.replica_nodes} == {"a", "b"}
        assert row.leader_id == row.replica_nodes[0]


def test_a_broker_that_was_away_leads_again_by_itself(
    admin: Admin, cluster: ProcessCluster
) -> None:
    create(admin, "led", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    cluster[2].stop()
    until_led(cluster, "led", [1, 3, 3])
    assert all(2 not in row.isr_nodes for row in partitions_of(cluster, "led"))
    cluster[2].start()
    until_led(cluster, "led", [1, 2, 3])
    until_whole(cluster)


def test_preferred_election_on_demand(admin: Admin, cluster: ProcessCluster) -> None:
    create(admin, "elected", [[1, 2]] * 3)
    until_led(cluster, "elected", [1, 1, 1])
    reorder(cluster, "elected", [2, 1])
    assert leaders_of(cluster, "elected") == [1, 1, 1]
    chosen = [TopicPartition("elected", 0), TopicPartition("elected", 1)]
    found = admin().elect_leaders(ElectionType.PREFERRED, chosen).result(SECONDS_MAX)
    errors = {each.partition: error and error.name() for each, error in found.items()}
    assert errors == {0: None, 1: "ELECTION_NOT_NEEDED"}
    until_led(cluster, "elected", [2, 1, 1])


def test_reassignment_with_throttle_cancel_and_resume(
    admin: Admin,
    cluster: ProcessCluster,
    tmp_path: Path,
    tools: ToolRunner,
) -> None:
    create(admin, "moved", [[1, 2]] * 4)
    produce(cluster, "moved", 800, partitions=4)
    plan = tmp_path / "plan.json"
    wanted = [{"topic": "moved", "partition": n, "replicas": [3, 1]} for n in range(4)]
    plan.write_text(json.dumps({"version": 1, "partitions": wanted}))

    def tool(*arguments: str) -> str:
        server = ("--bootstrap-server", cluster.bootstrap)
        done = tools.run("kafka-reassign-partitions", *server, *arguments)
        assert done.exit == 0, done
        return done.out

    file = ("--reassignment-json-file", str(plan))
    assert "Successfully started" in tool(*file, "--execute", "--throttle", str(SLOW))
    assert tool("--list").count("adding: 3. removing: 2.") == 4
    assert metric(cluster, "reassigning_partitions") == 4
    assert metric(cluster, "reassignment_records_left") > 0
    # The plan outlives the controller.
    acting = controller_of(cluster)
    cluster[acting].kill()
    wait_until(lambda: controller_of(cluster) != acting, "another controller", SECONDS_MAX)
    cluster[acting].start()
    wait_until(
        lambda: all({1, 2} <= set(row.isr_nodes) for row in partitions_of(cluster, "moved")),
        "the old replicas in sync",
        SECONDS_MAX,
    )
    assert tool("--list").count("adding: 3. removing: 2.") == 4
    assert "Successfully cancelled" in tool(*file, "--cancel")
    assert "No partition reassignments" in tool("--list")
    until_placed(cluster, "moved", [[1, 2]] * 4)
    tool(*file, "--execute")
    until_placed(cluster, "moved", [[1, 3]] * 4)
    assert tool(*file, "--verify").count("is completed") == 4
    assert set(leaders_of(cluster, "moved")) <= {1, 3}
    until_whole(cluster)


def test_a_topic_deleted_while_a_broker_is_down(admin: Admin, cluster: ProcessCluster) -> None:
    create(admin, "doomed", [[1, 2, 3]] * 2)
    produce(cluster, "doomed", 10, partitions=2)
    cluster[3].kill()
    until_gone(cluster, 3)
    wait_for(admin().delete_topics(["doomed"]))
    folders = cluster[3].data
    assert list(folders.glob("doomed-*"))
    create(admin, "doomed", [[1, 2]])
    cluster[3].start()
    wait_until(lambda: not list(folders.glob("doomed-*")), "its files to be gone", SECONDS_MAX)
    until_placed(cluster, "doomed", [[1, 2]])
    until_whole(cluster)


def test_an_unclean_leader_only_where_the_topic_asks(
    admin: Admin, cluster: ProcessCluster, millstream: Millstream
) -> None:
    create(admin, "safe", [[1, 2]])
    create(admin, "risky", [[1, 2]], **{"unclean.leader.election.enable": "true"})
    cluster[2].kill()
    until_gone(cluster, 2)
    wait_until(
        lambda: [row.isr_nodes for row in partitions_of(cluster, "safe")] == [[1]],
        "a smaller ISR",
        SECONDS_MAX,
    )
    produce(cluster, "safe", 5)
    produce(cluster, "risky", 5)
    cluster[1].kill()
    cluster[2].start()
    until_led(cluster, "risky", [2])
    assert leaders_of(cluster, "safe") == [-1]
    assert metric(cluster, "offline_partitions") >= 1
    assert metric(cluster, "unclean_leader_elections_total") >= 1
    chosen = [TopicPartition("safe", 0)]
    found = admin().elect_leaders(ElectionType.PREFERRED, chosen).result(SECONDS_MAX)
    assert [error and error.name() for error in found.values()] == [
        "PREFERRED_LEADER_NOT_AVAILABLE"
    ]
    cluster[1].start()
    until_led(cluster, "safe", [1])
    until_whole(cluster)
    wait_until(
        lambda: (
            not metric(cluster, "offline_partitions")
            and not metric(cluster, "under_replicated_partitions")
            and metric(cluster, "active_controller") == 1
        ),
        "metrics of a whole cluster",
        SECONDS_MAX,
    )
    (described,) = millstream("topic", "describe", "safe")
    assert [row["end_offset"] for row in described["partitions"]] == [5]


def test_a_command_does_not_wait_for_a_controller_that_is_frozen(
    cluster: ProcessCluster, millstream: Millstream
) -> None:
    acting = controller_of(cluster)
    cluster[acting].pause()
    try:
        millstream("topic", "create", "late", "-p", "1", "-r", "1", "--timeout", "60")
    finally:
        cluster[acting].resume()
    until_whole(cluster)
