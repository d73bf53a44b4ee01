"""The clusters under measurement: three brokers and one metadata server, on one machine.

Millstream's cluster is three brokers and one etcd member. Kafka's is three brokers and one KRaft
controller. So a killed broker never takes a part of the metadata quorum with it. Both have default
settings except for replication: every topic has three replicas, and a write with acks=all needs
two of them in sync.

The module owns the processes and their folder. CPU and memory are those of the brokers, without
etcd and without Kafka's controller.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.brokers import (
    START_SECONDS_MAX,
    STOP_SECONDS_MAX,
    Baseline,
    KafkaServer,
    Usage,
    new_folder,
    usage_of,
)
from millstream.process.broker_server import BrokerEndpoints, BrokerServer
from millstream.process.etcd_server import EtcdEndpoints, EtcdMember, store_address
from millstream.process.port import HOST, free_port
from millstream.process.server_process import ServerProcess, start_all, stop_all

BROKERS = 3
REPLICAS = 3
SCALE_START_SECONDS_MAX = 300.0

KAFKA_BROKER = """\
process.roles=broker
node.id={node_id}
controller.quorum.bootstrap.servers={host}:{controller_port}
listeners=PLAINTEXT://{host}:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
"""

KAFKA_CONTROLLER = """\
process.roles=controller
node.id={node_id}
controller.quorum.bootstrap.servers={host}:{port}
listeners=CONTROLLER://{host}:{port}
advertised.listeners=CONTROLLER://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
"""

MILLSTREAM_SETTINGS = {
    "default.replication.factor": 3,
    "offsets.topic.replication.factor": 3,
    "min.insync.replicas": 2,
}


class Cluster:
    """The brokers of one cluster, by the node id that clients see, and their metadata server.

    `start` starts everything; `remove` stops it and deletes the folder.
    """

    name = "cluster"
    replicas = REPLICAS
    client_properties: Mapping[str, str] = {}

    def __init__(
        self,
        folder: Path,
        metadata_server: ServerProcess,
        nodes: Mapping[int, KafkaServer | BrokerServer],
    ) -> None:
        self.folder = folder
        self.metadata_server = metadata_server
        self.nodes = nodes

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        self.metadata_server.start()
        self.start_brokers()

    def start_brokers(self, seconds_max: float = START_SECONDS_MAX) -> None:
        start_all(self.nodes.values(), seconds_max)

    def stop_brokers(self) -> None:
        stop_all(self.nodes.values(), STOP_SECONDS_MAX)

    def remove(self) -> None:
        self.stop_brokers()
        self.metadata_server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def usage(self) -> Usage:
        """Return the usage of all running brokers together."""
        found = [usage_of(node) for node in self.nodes.values() if node.is_alive()]
        return Usage(
            sum(each.cpu_seconds for each in found), sum(each.resident_bytes for each in found)
        )


class MillstreamCluster(Cluster):
    name = "millstream"

    def __init__(self) -> None:
        folder = new_folder("millstream-cluster")
        etcd = EtcdMember("etcd", folder, EtcdEndpoints.free(), ("--log-level", "warn"))
        nodes = {
            number: BrokerServer(
                f"broker-{number}",
                folder,
                BrokerEndpoints.free(),
                {
                    "node.id": number,
                    "metadata.store": store_address([etcd]),
                    **MILLSTREAM_SETTINGS,
                },
                START_SECONDS_MAX,
            )
            for number in range(1, BROKERS + 1)
        }
        super().__init__(folder, etcd, nodes)


class BaselineCluster(MillstreamCluster):
    """A cluster of brokers of another checkout."""

    name = "baseline"

    def __init__(self) -> None:
        super().__init__()
        for node in self.nodes.values():
            assert isinstance(node, BrokerServer)
            node.python = Baseline.python


class KafkaCluster(Cluster):
    name = "kafka"

    def __init__(self) -> None:
        folder = new_folder("kafka-cluster")
        controller = _kafka_server("controller", folder)
        settings = KAFKA_CONTROLLER.format(
            host=HOST, port=controller.port, node_id=100, data=controller.data
        )
        controller.format(settings, "--standalone")
        nodes = {}
        for number in range(1, BROKERS + 1):
            node = nodes[number] = _kafka_server(f"broker-{number}", folder)
            settings = KAFKA_BROKER.format(
                host=HOST,
                port=node.port,
                controller_port=controller.port,
                node_id=number,
                data=node.data,
            )
            node.format(settings, "--no-initial-controllers")
        super().__init__(folder, controller, nodes)


def _kafka_server(name: str, folder: Path) -> KafkaServer:
    (folder / name).mkdir()
    return KafkaServer(name, folder / name, free_port())


CLUSTERS: dict[str, type[MillstreamCluster | KafkaCluster]] = {
    KafkaCluster.name: KafkaCluster,
    MillstreamCluster.name: MillstreamCluster,
    BaselineCluster.name: BaselineCluster,
}
