"""The brokers under measurement, each alone and with a temporary folder of its own.

It owns the processes and the folders, and does not know what is measured. Both brokers run with
their default settings, so both have the same log mode: appends go to the page cache, without an
fsync before the acknowledgement.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from millstream.process.broker_server import BrokerEndpoints, BrokerServer
from millstream.process.port import HOST, free_port
from millstream.process.readiness import listens
from millstream.process.server_process import ServerProcess

REPOSITORY = Path(__file__).resolve().parent.parent
JARS = REPOSITORY / ".cache" / "jars"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
LOG_MODE = "page cache, no fsync before an ack (the default of both)"
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"

# The JVM flags of Kafka's own start scripts.
KAFKA_JVM = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
]

KAFKA_LOGGING = """\
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
"""

# The one-node file that Kafka ships, without the lines that repeat Kafka's defaults.
KAFKA_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


@dataclass(slots=True, frozen=True)
class Usage:
    """CPU seconds spent so far and resident memory now, of one broker or a whole cluster."""

    cpu_seconds: float
    resident_bytes: int


def usage_of(server: ServerProcess) -> Usage:
    """Return the usage of one running process."""
    process = Path(f"/proc/{server.pid}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    resident_pages = int((process / "statm").read_text().split()[1])
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), resident_pages * os.sysconf("SC_PAGE_SIZE"))


def new_folder(name: str) -> Path:
    """Create a temporary folder, in BENCH_DIR if that is set."""
    return Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=os.environ.get("BENCH_DIR")))


class Target(Protocol):
    """The subject of a measurement: a broker or a cluster."""

    name: str
    #: The replication factor of every topic that a case creates.
    replicas: int
    #: What clients need besides the address, by librdkafka's names.
    client_properties: Mapping[str, str]

    @property
    def bootstrap(self) -> str: ...

    def start(self) -> None: ...

    def remove(self) -> None: ...

    def usage(self) -> Usage: ...


class KafkaServer(ServerProcess):
    """One Apache Kafka process, which is a broker, a controller or both by its settings file."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        super().__init__(name, folder / "process.log", START_SECONDS_MAX)
        self.folder = folder
        self.port = port

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def format(self, settings: str, *flags: str) -> None:
        """Write the settings file and format the data folder. Not part of any figure."""
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

    def command(self) -> Sequence[str]:
        return [*self._java(*KAFKA_JVM), "kafka.Kafka", str(self.folder / "server.properties")]

    def working_folder(self) -> Path:
        return self.folder

    def is_ready(self) -> bool:
        return listens(HOST, self.port)


class Broker:
    """One broker over one folder. `start` after `stop` reuses the folder; `remove` deletes it."""

    name = "broker"
    replicas = 1
    client_properties: Mapping[str, str] = {}

    def __init__(self, server: KafkaServer | BrokerServer, folder: Path) -> None:
        self.server = server
        self.folder = folder

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def plain_port(self) -> int:
        """The port of a listener without encryption and authentication."""
        return self.server.port

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop(STOP_SECONDS_MAX)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def usage(self) -> Usage:
        return usage_of(self.server)


class Kafka(Broker):
    """Apache Kafka, one node, KRaft, default settings."""

    name = "kafka"

    def __init__(self, port: int = 0) -> None:
        folder = new_folder(self.name)
        server = KafkaServer(self.name, folder, port or free_port())
        settings = KAFKA_SETTINGS.format(
            host=HOST, port=server.port, controller_port=free_port(), data=server.data
        )
        server.format(settings, "--standalone")
        super().__init__(server, folder)


class ListeningServer(BrokerServer):
    """A Millstream broker that counts as started, like Kafka, once its port accepts connections."""

    def is_ready(self) -> bool:
        return listens(self.host, self.port)


class Millstream(Broker):
    """Millstream, one node, default settings."""

    name = "millstream"

    def __init__(self, port: int = 0) -> None:
        folder = new_folder(self.name)
        endpoints = BrokerEndpoints(HOST, port or free_port(), free_port())
        super().__init__(
            ListeningServer(self.name, folder, endpoints, {}, START_SECONDS_MAX), folder
        )

    @property
    def http_port(self) -> int:
        assert isinstance(self.server, BrokerServer)
        return self.server.http_port


class Baseline(Millstream):
    """Millstream of another checkout, one node, default settings."""

    name = "baseline"
    #: The Python of the other checkout's virtual environment; `--baseline` sets it.
    python = ""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        assert isinstance(self.server, BrokerServer)
        self.server.python = self.python


BROKERS: dict[str, type[Kafka | Millstream]] = {
    Kafka.name: Kafka,
    Millstream.name: Millstream,
    Baseline.name: Baseline,
}
