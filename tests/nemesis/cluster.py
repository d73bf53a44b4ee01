"""Three brokers and three etcd members on a network whose connections can be cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from millstream.process.etcd_server import join_members, store_address
from nemesis.network import Network
from nemesis.node import BrokerNode, EtcdNode, Node
from nemesis.security import make_secure

SIZE = 3
START_S_MAX = 120.0
_LOOK_S = 0.2
_SETTINGS = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "auto.create.topics.enable": "false",
}


class Cluster:
    """The cluster under attack. Its processes end with this process."""

    def __init__(self, folder: Path, network: Network, *, is_secure: bool = False) -> None:
        self.network = network
        self.members = [
            EtcdNode(f"etcd-{number}", folder, network) for number in range(1, SIZE + 1)
        ]
        join_members(self.members)
        settings = {**_SETTINGS, "metadata.store": store_address(self.members, "nemesis")}
        self.brokers = [
            BrokerNode(number, folder, network, settings) for number in range(1, SIZE + 1)
        ]
        self._admin: AdminClient | None = None
        #: The properties with which clients connect.
        self.connection = {"bootstrap.servers": self.bootstrap}
        if is_secure:
            self.connection |= make_secure(self.brokers, folder / "security")

    @property
    def nodes(self) -> list[Node]:
        return [*self.members, *self.brokers]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({**self.connection, "log_level": 0})
        return self._admin

    def start(self, topics: dict[str, int]) -> None:
        for node in self.nodes:
            node.start(wait=False)
        await_true(self._has_all_brokers, "all brokers to be in the metadata", START_S_MAX)
        made = self.admin.create_topics(
            [NewTopic(topic, count) for topic, count in topics.items()], operation_timeout=60
        )
        for future in made.values():
            future.result()
        self.await_whole(START_S_MAX)

    def _has_all_brokers(self) -> bool:
        metadata = self._metadata()
        return metadata is not None and len(metadata.brokers) == SIZE

    # State

    def _metadata(self) -> ClusterMetadata | None:
        try:
            return self.admin.list_topics(timeout=5)
        except KafkaException:
            return None

    def trouble(self) -> str:
        """Return why the cluster is not healthy; empty if it is."""
        ended = [node.name for node in self.nodes if node.has_exited()]
        if ended:
            return f"{', '.join(ended)} exited unexpectedly"
        sick = [member.name for member in self.members if not member.is_ready()]
        if sick:
            return f"etcd members not healthy: {', '.join(sick)}"
        metadata = self._metadata()
        if metadata is None:
            return "no broker responds"
        if len(metadata.brokers) < SIZE:
            return f"only brokers {sorted(metadata.brokers)} are in the metadata"
        lacking = [
            f"{topic.topic}-{partition.id} (leader {partition.leader}, ISR {partition.isrs})"
            for topic in metadata.topics.values()
            for partition in topic.partitions.values()
            if partition.leader < 0 or len(partition.isrs) < SIZE
        ]
        return (
            f"{len(lacking)} partitions without a full ISR: {', '.join(lacking[:4])}"
            if lacking
            else ""
        )

    def await_whole(self, seconds_max: float) -> float:
        """Wait until the cluster is healthy; return the seconds, or raise AssertionError."""
        begin = time.monotonic()
        while trouble := self.trouble():
            waited = time.monotonic() - begin
            assert waited < seconds_max, f"not healthy after {waited:.0f} s: {trouble}"
            time.sleep(_LOOK_S)
        return time.monotonic() - begin

    def leaders(self, topic: str) -> set[int]:
        """Return the leaders of a topic's partitions, from any broker that responds."""
        metadata = self._metadata()
        if metadata is None or topic not in metadata.topics:
            return set()
        return {partition.leader for partition in metadata.topics[topic].partitions.values()} - {-1}

    def controller(self) -> int | None:
        try:
            found = self.admin.describe_cluster(request_timeout=5).result()
        except KafkaException:
            return None
        return None if found.controller is None else int(found.controller.id)


def is_etcd_leader(member: EtcdNode) -> bool:
    """Return whether a member leads; False if it does not respond."""
    try:
        return member.is_leader(timeout_s=2)
    except OSError:
        return False


def await_true(condition: Callable[[], object], what: str, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds_max:.0f} s for {what}"
        time.sleep(_LOOK_S)
