"""A replica that lost its disk never counts as one that has its records.

Broker processes on an etcd. Tests empty, swap and restore their data directories while the brokers
are down. Every scenario has a topic of its own, with replicas on brokers 1 and 2. Broker 3 has no
replica and never stops; tests ask it for the cluster's state.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess, ServerFailed, wait_until
from harness.process.process_cluster import ProcessCluster
from harness.raw.raw_client import RawClient, values_batch
from millstream.model.error import ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.wire.messages.create_topics import CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from millstream.wire.messages.elect_leaders import ElectLeadersRequest

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("lost-disk")]

#: Kafka's jars, where `scripts/setup-test-tools` could fetch them.
JARS = Path(__file__).resolve().parents[2] / ".cache" / "jars"
UNCLEAN = 1
Row = DescribeTopicPartitionsResponse.Topic.Partition


class World:
    """A cluster of three brokers, queried through broker 3, which never stops."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self._topics: list[str] = []

    def client(self, node_id: int = 3) -> RawClient:
        broker = self.cluster[node_id]
        return RawClient(broker.host, broker.port)

    def create(self, name: str, replicas: list[int], **configs: object) -> None:
        """Create a topic once all brokers are registered."""
        assignment = CreateTopicsRequest.Topic.Assignment(partition_index=0, broker_ids=replicas)
        topic = CreateTopicsRequest.Topic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment],
            configs=[
                CreateTopicsRequest.Topic.Config(name=key.replace("_", "."), value=str(value))
                for key, value in configs.items()
            ],
        )
        with self.client() as client:
            (row,) = client.call(CreateTopicsRequest(topics=[topic])).topics
        assert row.error_code == 0, row
        self._topics.append(name)
        self.until(name, lambda row: sorted(row.isr_nodes) == sorted(replicas))

    def delete_topics(self) -> None:
        """Delete all topics, so that they do not affect other tests."""
        with self.client() as client:
            for row in client.call(DeleteTopicsRequest(topic_names=self._topics), 5).responses:
                assert row.error_code == 0, row

    def row(self, topic: str) -> Row:
        wanted = [DescribeTopicPartitionsRequest.Topic(name=topic)]
        with self.client() as client:
            response = client.call(DescribeTopicPartitionsRequest(topics=wanted))
        row: Row = response.topics[0].partitions[0]
        return row

    def until(self, topic: str, condition: Any) -> None:
        seen: list[Row] = []

        def holds() -> bool:
            seen.append(self.row(topic))
            return bool(condition(seen[-1]))

        try:
            wait_until(holds, f"{topic} to change")
        except AssertionError as error:
            error.add_note(f"last seen: {seen[-1]}")
            raise

    def until_led_by(self, topic: str, leader: int) -> None:
        self.until(topic, lambda row: row.leader_id == leader)

    def produce(self, topic: str, leader: int, count: int) -> None:
        """Produce records with acks=all."""
        with self.client(leader) as client:
            for number in range(0, count, 100):
                batch = values_batch(*(b"%d" % each for each in range(number, number + 100)))
                row = client.produce(topic, batch)
                assert row.error_code == ErrorCode.NONE, row

    def count(self, topic: str, leader: int, offset: int = 0) -> int:
        """Count the records that a consumer can read, once the leader knows what is committed."""
        with self.client(leader) as client:
            wait_until(
                lambda: client.list_offset(topic, -1).error_code == ErrorCode.NONE,
                f"the end of {topic} to be known",
            )
            return len(client.read_all(topic, offset=offset))

    def elect_uncleanly(self, topic: str) -> int:
        """Send Kafka's ElectLeaders request; return its error code."""
        wanted = [ElectLeadersRequest.Topic(topic=topic, partitions=[0])]
        request = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=wanted)
        with self.client() as client:
            (row,) = client.call(request).replica_election_results
        return int(row.partition_result[0].error_code)

    def millstream(self, *arguments: str, code: int = 0) -> Any:
        """Run `millstream ARGUMENTS... --json` and return its output."""
        program = str(Path(sys.executable).with_name("millstream"))
        done = subprocess.run(
            [program, *arguments, "--json", "-b", self.cluster[3].bootstrap],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done
        return json.loads(done.stdout)

    def metric(self, name: str) -> float:
        """Return the largest value that any broker exports."""
        values = []
        for broker in self.cluster:
            if broker.is_alive():
                url = f"http://{broker.host}:{broker.http_port}/metrics"
                with urllib.request.urlopen(url, timeout=10) as response:
                    lines = response.read().decode().splitlines()
                values += [float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")]
        assert values, name
        return max(values)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    settings = {"replica.lag.time.max.ms": 3000, "auto.leader.rebalance.enable": False}
    with ProcessCluster(tmp_path_factory.mktemp("disks"), 3, settings) as cluster:
        yield cluster


@pytest.fixture
def world(cluster: ProcessCluster) -> Iterator[World]:
    """Provide the cluster with every broker running and no topics."""
    for broker in cluster:
        if not broker.is_alive():
            broker.kill()
            broker.start(wait=False)
    for broker in cluster:
        broker.wait_until_ready()
    world = World(cluster)
    yield world
    world.delete_topics()


def lose_disk(broker: BrokerProcess) -> Path:
    """Move the data directory of a stopped broker away; return where it is now."""
    kept = broker.data.with_name("kept")
    broker.data.rename(kept)
    return kept


def return_disk(broker: BrokerProcess, kept: Path) -> None:
    if broker.data.exists():
        shutil.rmtree(broker.data)
    kept.rename(broker.data)


def leave_last_replica(world: World, topic: str) -> None:
    """Write 1,000 records to brokers 1 and 2, then 100 to broker 1 alone; then stop both."""
    one, two = world.cluster[1], world.cluster[2]
    world.create(topic, [1, 2], min_insync_replicas=1)
    world.produce(topic, 1, 1000)
    two.kill()
    world.until(topic, lambda row: list(row.isr_nodes) == [1])
    world.produce(topic, 1, 100)
    one.kill()
    world.until_led_by(topic, NO_LEADER)


def test_an_empty_disk_is_not_elected_and_the_right_one_is(world: World) -> None:
    topic = "empty"
    one, two = world.cluster[1], world.cluster[2]
    leave_last_replica(world, topic)
    kept = lose_disk(one)
    one.start()
    two.start()
    world.until(topic, lambda row: list(row.isr_nodes) == [])
    row = world.row(topic)
    assert (row.leader_id, row.error_code) == (NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE)
    assert list(row.last_known_elr) == [1]
    status = world.millstream("cluster", "status", code=1)
    assert status["without_leader"] == 1
    assert world.metric("millstream_offline_partitions") == 1
    one.stop()
    return_disk(one, kept)
    one.start()
    world.until_led_by(topic, 1)
    world.until(topic, lambda row: sorted(row.isr_nodes) == [1, 2])
    assert world.count(topic, 1) == 1100


def elect(world: World, topic: str) -> None:
    """Request an unclean election, with Kafka's own tool where its jars exist."""
    if not JARS.is_dir() or shutil.which("java") is None:
        assert world.elect_uncleanly(topic) == ErrorCode.NONE
        return
    command = [
        "java",
        "-Xmx256m",
        "-cp",
        f"{JARS}/*",
        "org.apache.kafka.tools.LeaderElectionCommand",
    ]
    command += ["--bootstrap-server", world.cluster[3].bootstrap, "--election-type", "unclean"]
    command += ["--topic", topic, "--partition", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert (
        f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in done.stdout
    )


def test_an_unclean_election_takes_the_replica_that_still_has_a_disk(world: World) -> None:
    topic = "unclean"
    one, two = world.cluster[1], world.cluster[2]
    leave_last_replica(world, topic)
    shutil.rmtree(one.data)
    one.start()
    two.start()
    world.until(topic, lambda row: list(row.isr_nodes) == [])
    elect(world, topic)
    world.until_led_by(topic, 2)
    world.until(topic, lambda row: sorted(row.isr_nodes) == [1, 2])
    assert world.count(topic, 2) == 1000


def test_a_deleted_log_folder_is_waited_for(world: World) -> None:
    """The only replica loses one of its logs after a crash; an operator restores it later."""
    topic = "folder"
    one = world.cluster[1]
    world.create(topic, [1])
    world.create("folder-beside", [1])
    world.create("folder-unused", [1])
    world.produce(topic, 1, 200)
    world.produce("folder-beside", 1, 100)
    one.kill()
    kept = one.data.parent / "kept-log"
    (one.data / f"{topic}-0").rename(kept)
    one.start()
    # A partition that was never written to has no directory either.
    world.until_led_by("folder-unused", 1)
    world.until_led_by("folder-beside", 1)
    row = world.row(topic)
    assert (row.leader_id, list(row.isr_nodes), list(row.last_known_elr)) == (NO_LEADER, [], [1])
    assert world.metric("millstream_partitions_without_in_sync_replica") == 1
    one.kill()
    kept.rename(one.data / f"{topic}-0")
    one.start()
    world.until_led_by(topic, 1)
    assert world.count(topic, 1) == 200
    assert world.count("folder-beside", 1) == 100


def test_a_deleted_log_folder_is_given_up_on_request(world: World) -> None:
    topic = "given-up"
    one = world.cluster[1]
    world.create(topic, [1])
    world.produce(topic, 1, 100)
    one.stop()
    shutil.rmtree(one.data / f"{topic}-0")
    one.start()
    assert world.row(topic).leader_id == NO_LEADER
    (row,) = world.millstream("cluster", "elect", topic, "--unclean", "--yes")
    assert row == {"topic": topic, "partition": 0, "result": "elected"}
    world.until_led_by(topic, 1)
    # The loss is not reported again, although nothing has been written since.
    one.kill()
    one.start()
    world.until_led_by(topic, 1)
    world.produce(topic, 1, 100)
    assert world.count(topic, 1, offset=100) == 100, "offsets are not used twice"


def test_an_eligible_replica_is_elected_without_loss(world: World) -> None:
    topic = "eligible"
    one, two = world.cluster[1], world.cluster[2]
    world.create(topic, [1, 2], min_insync_replicas=2)
    world.produce(topic, 1, 200)
    two.stop()
    world.until(topic, lambda row: list(row.isr_nodes) == [1])
    assert list(world.row(topic).eligible_leader_replicas) == [2]
    with world.client(1) as client:
        # Records that only the last in-sync replica has are neither acknowledged nor visible.
        assert client.produce(topic, values_batch(b"alone"), acks=1).error_code == ErrorCode.NONE
        refused = client.produce(topic, values_batch(b"refused")).error_code
        assert refused == ErrorCode.NOT_ENOUGH_REPLICAS
        assert len(client.read_all(topic)) == 200
    one.kill()
    world.until_led_by(topic, NO_LEADER)
    shutil.rmtree(one.data)
    two.start()
    world.until_led_by(topic, 2)
    one.start()
    world.until(topic, lambda row: sorted(row.isr_nodes) == [1, 2])
    assert list(world.row(topic).eligible_leader_replicas) == []
    assert world.count(topic, 2) == 200


def test_a_broker_does_not_start_on_another_brokers_disk(world: World) -> None:
    one, two = world.cluster[1], world.cluster[2]
    one.stop()
    two.stop()
    kept = lose_disk(one)
    shutil.copytree(two.data, one.data)
    with pytest.raises(ServerFailed, match=r"says node\.id=2, but this is 1"):
        one.start()
    return_disk(one, kept)
    one.start()
    two.start()
