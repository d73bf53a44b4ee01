"""Clusters under measurement: three brokers and what keeps their metadata, on one machine.

Millstream's is three brokers and one etcd; Kafka's is three brokers and one controller of its own
(KRaft). Either way a broker that is killed takes no part of the metadata's quorum with it. Both
have their default settings, but for replication: three replicas of everything, two of them in sync
for a write with acks=all.

Owns the processes and their folder. CPU and memory are of the brokers, not of etcd or Kafka's
controller.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bench.brokers import (
    HOST,
    JARS,
    KAFKA_JVM,
    KAFKA_LOGGING,
    START_SECONDS_MAX,
    Broker,
    Usage,
    free_port,
)

BROKERS = 3
REPLICAS = 3
SCALE_START_SECONDS_MAX = 300.0
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

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

MILLSTREAM_SETTINGS = (
    "default.replication.factor=3",
    "offsets.topic.replication.factor=3",
    "min.insync.replicas=2",
)


class Node(Broker):
    """One process of a cluster, in a folder within the cluster's own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def is_ready(self) -> bool:
        raise NotImplementedError

    def wait_until_ready(self, seconds_max: float = START_SECONDS_MAX) -> None:
        assert self.process is not None
        deadline = time.monotonic() + seconds_max
        while not self.is_ready():
            if self.process.poll() is not None:
                tail = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.name} ended while starting:\n{tail}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is not ready after {seconds_max:.0f} s")
            time.sleep(0.02)

    def start(self) -> None:
        self.spawn()
        self.wait_until_ready()

    def kill(self) -> None:
        """As a power cut does it; the folder stays."""
        process, self.process = self.process, None
        assert process is not None
        process.kill()
        process.wait()


class Etcd(Node):
    def command(self) -> list[str]:
        url, peer = f"http://{HOST}:{self.port}", f"http://{HOST}:{free_port()}"
        return [
            *("etcd", "--name", self.name, "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"{self.name}={peer}", "--logger", "zap"),
            *("--log-outputs", "stderr", "--log-level", "warn"),
        ]

    def is_ready(self) -> bool:
        return answers(f"http://{HOST}:{self.port}/health")


class MillstreamNode(Node):
    def __init__(self, name: str, folder: Path, node_id: int, etcd: Etcd) -> None:
        super().__init__(name, folder)
        self.node_id = node_id
        self.http_port = free_port()
        self._etcd = etcd

    def command(self) -> list[str]:
        program = Path(sys.executable).with_name("millstream")
        command = [str(program), "serve", "--data", str(self.folder / "data")]
        command += ["--listen", self.bootstrap, "--http", f"{HOST}:{self.http_port}"]
        command += ["--metadata", f"etcd://{HOST}:{self._etcd.port}"]
        for setting in (f"node.id={self.node_id}", *MILLSTREAM_SETTINGS):
            command += ["--set", setting]
        return command

    def is_ready(self) -> bool:
        return answers(f"http://{HOST}:{self.http_port}/readyz")


class KafkaNode(Node):
    """A broker, or the controller, by its settings."""

    def __init__(self, name: str, folder: Path, node_id: int) -> None:
        super().__init__(name, folder)
        self.node_id = node_id

    def format(self, settings: str, *flags: str) -> None:
        (self.folder / "server.properties").write_text(settings)
        logging = KAFKA_LOGGING.format(file=self.folder / "server.log")
        (self.folder / "log4j2.properties").write_text(logging)
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, *flags]
        subprocess.run(
            [*self._java("-Xmx256M"), *tool, "-c", str(self.folder / "server.properties")],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def _java(self, *flags: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return ["java", *flags, logging, "-cp", f"{JARS}/*"]

    def command(self) -> list[str]:
        return [*self._java(*KAFKA_JVM), "kafka.Kafka", str(self.folder / "server.properties")]

    def is_ready(self) -> bool:
        return listens(self.port)


class Cluster:
    """`start` starts everything; `remove` stops it and deletes the folder."""

    name = "cluster"
    replicas = REPLICAS

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(
            prefix=f"bench-{self.name}-cluster-", dir=os.environ.get("BENCH_DIR")
        )
        self.folder = Path(folder)
        #: By broker id, as clients are told it.
        self.nodes: dict[int, Node] = {}
        self.keeper = self.prepare()

    def prepare(self) -> Node:
        """Fill `nodes`; returns what keeps the metadata."""
        raise NotImplementedError

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        self.keeper.start()
        self.start_brokers()

    def start_brokers(self, seconds_max: float = START_SECONDS_MAX) -> None:
        for node in self.nodes.values():
            node.spawn()
        for node in self.nodes.values():
            node.wait_until_ready(seconds_max)

    def stop_brokers(self) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.process.terminate()
        for node in self.nodes.values():
            node.stop()

    def remove(self) -> None:
        self.stop_brokers()
        self.keeper.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def usage(self) -> Usage:
        """Of all brokers that run."""
        found = [node.usage() for node in self.nodes.values() if node.process is not None]
        return Usage(
            sum(each.cpu_seconds for each in found), sum(each.resident_bytes for each in found)
        )


class MillstreamCluster(Cluster):
    name = "millstream"

    def prepare(self) -> Node:
        etcd = Etcd("etcd", self.folder)
        for number in range(1, BROKERS + 1):
            self.nodes[number] = MillstreamNode(f"broker-{number}", self.folder, number, etcd)
        return etcd


class KafkaCluster(Cluster):
    name = "kafka"

    def prepare(self) -> Node:
        controller = KafkaNode("controller", self.folder, 100)
        where = {"host": HOST, "port": controller.port, "node_id": controller.node_id}
        data = controller.folder / "data"
        controller.format(KAFKA_CONTROLLER.format(data=data, **where), "--standalone")
        for number in range(1, BROKERS + 1):
            node = KafkaNode(f"broker-{number}", self.folder, number)
            settings = KAFKA_BROKER.format(
                host=HOST,
                port=node.port,
                controller_port=controller.port,
                node_id=number,
                data=node.folder / "data",
            )
            node.format(settings, "--no-initial-controllers")
            self.nodes[number] = node
        return controller


CLUSTERS: dict[str, type[Cluster]] = {
    KafkaCluster.name: KafkaCluster,
    MillstreamCluster.name: MillstreamCluster,
}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(is_so: Callable[[], bool], what: str, seconds_max: float) -> float:
    """Returns the seconds it took."""
    begin = time.monotonic()
    while not is_so():
        if time.monotonic() - begin > seconds_max:
            raise TimeoutError(f"waited {seconds_max:.0f} s for {what}")
        time.sleep(0.02)
    return time.monotonic() - begin
