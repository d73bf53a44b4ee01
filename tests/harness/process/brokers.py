"""One broker, or three that replicate every topic, with the same methods for both.

    @pytest.mark.parametrize("count", [ONE, THREE])
    def test_something(tmp_path, count):
        with started(tmp_path, count, SETTINGS) as brokers:
            brokers.create_topic("t", partitions=12)

On three brokers every topic has three replicas and needs two of them in sync: topics that a test
or a client creates, and the internal ones. The test is skipped, with the reason, where etcd cannot
be installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.process_cluster import ProcessCluster, coordinator_id
from harness.raw.raw_client import RawClient
from millstream.wire.messages.metadata import MetadataRequest

#: The names of test parameters by number of brokers.
COUNT_NAMES: Final = {1: "one broker", 3: "three brokers"}
#: Parameters for tests that take the number of brokers.
ONE: Final = pytest.param(1, id=COUNT_NAMES[1])
THREE: Final = pytest.param(3, id=COUNT_NAMES[3])
#: The same for tests that only the soak runs.
ONE_IN_SOAK: Final = pytest.param(1, id=COUNT_NAMES[1], marks=pytest.mark.soak)
THREE_IN_SOAK: Final = pytest.param(3, id=COUNT_NAMES[3], marks=pytest.mark.soak)

REPLICATED: Final[Mapping[str, object]] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
#: Settings for tests that wait for groups: short rebalances and few internal partitions.
QUICK_GROUPS: Final[Mapping[str, object]] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


class Brokers:
    """The running brokers, by node id. `kill` and `start` take one of these ids."""

    def __init__(self, processes: Mapping[int, BrokerProcess]) -> None:
        self._processes = dict(processes)

    def __len__(self) -> int:
        return len(self._processes)

    def __iter__(self) -> Iterator[BrokerProcess]:
        return iter(self._processes.values())

    def __getitem__(self, node_id: int) -> BrokerProcess:
        return self._processes[node_id]

    @property
    def node_ids(self) -> list[int]:
        return list(self._processes)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self)

    def kill(self, node_id: int) -> None:
        """Send SIGKILL to a broker."""
        self._processes[node_id].kill()

    def start(self, node_id: int) -> None:
        """Start a killed broker again; return when it is ready."""
        self._processes[node_id].start()

    def stop(self) -> None:
        """Stop all brokers at the same time; fail unless each exits with code 0."""
        for broker in self:
            broker.terminate()
        for broker in self:
            broker.stop()

    def check_logs(self) -> None:
        """Fail if a broker logged a traceback."""
        for broker in self:
            assert "Traceback" not in broker.log_text(), broker.log_tail()

    # Requests

    def client(self) -> RawClient:
        """Return a connection to the first running broker."""
        broker = next(each for each in self if each.is_alive())
        return RawClient(broker.host, broker.port)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic with a replica on every broker."""
        with self.client() as client:
            client.create_topic(name, partitions, configs, len(self))

    def leader_id(self, topic: str, partition: int = 0) -> int:
        """Return the node id of a partition's leader, once a running broker leads it."""
        request = MetadataRequest(
            topics=[MetadataRequest.Topic(name=topic)], allow_auto_topic_creation=False
        )
        found: list[int] = []

        def has_leader() -> bool:
            with self.client() as client:
                (row,) = client.call(request).topics
            leaders = {each.partition_index: each.leader_id for each in row.partitions}
            leader = leaders.get(partition, -1)
            if leader in self._processes and self._processes[leader].is_alive():
                found.append(leader)
            return bool(found)

        wait_until(has_leader, f"a leader of {topic}-{partition}")
        return found[0]

    def leader(self, topic: str, partition: int = 0) -> RawClient:
        """Return a connection to a partition's leader."""
        return self._connection(self.leader_id(topic, partition))

    def coordinator(self, key: str, key_type: int) -> int:
        """Return the node id of the coordinator of a group or a transactional id."""
        return coordinator_id(self.client, key, key_type)

    def coordinator_client(self, key: str, key_type: int) -> RawClient:
        """Return a connection to the coordinator of a group or a transactional id."""
        return self._connection(self.coordinator(key, key_type))

    def wait_until_in_sync(self, topic: str) -> None:
        """Return when all brokers run and agree that each has an in-sync replica of the topic."""
        request = MetadataRequest(
            topics=[MetadataRequest.Topic(name=topic)], allow_auto_topic_creation=False
        )

        def views() -> Iterator[list[tuple[int, int, int, int]]]:
            for broker in self:
                with RawClient(broker.host, broker.port) as client:
                    (row,) = client.call(request).topics
                yield sorted(
                    (each.partition_index, each.leader_id, each.leader_epoch, len(each.isr_nodes))
                    for each in row.partitions
                )

        def is_in_sync() -> bool:
            first, *others = views()
            return all(isr == len(self) for _, _, _, isr in first) and all(
                each == first for each in others
            )

        wait_until(is_in_sync, f"all replicas of {topic} to be in sync")

    def wait_until_registered(self) -> None:
        """Return when every broker knows all others, so that topics can have replicas on all."""

        def is_registered(broker: BrokerProcess) -> bool:
            with RawClient(broker.host, broker.port) as client:
                return len(client.call(MetadataRequest(topics=[])).brokers) == len(self)

        for broker in self:
            wait_until(lambda: is_registered(broker), "all brokers to be registered")  # noqa: B023

    def _connection(self, node_id: int) -> RawClient:
        broker = self._processes[node_id]
        return RawClient(broker.host, broker.port)


@contextmanager
def started(
    folder: Path, count: int, settings: Mapping[str, object] | None = None
) -> Iterator[Brokers]:
    """Run `count` brokers with their data in `folder`; kill them at the end."""
    if count == 1:
        with BrokerProcess(folder, settings) as broker:
            yield Brokers({1: broker})
    else:
        with ProcessCluster(folder, count, {**(settings or {}), **REPLICATED}) as cluster:
            brokers = Brokers({number: cluster[number] for number in range(1, count + 1)})
            brokers.wait_until_registered()
            yield brokers
