"""Starts, stops and meters the brokers under measurement, each alone and with its own throw-away
folder.

Owns the processes and the folders. Does not know what is measured. Both brokers run with their
default settings, so the log mode is the same for both: appends go to the page cache, no fsync
before an ack.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

REPOSITORY = Path(__file__).resolve().parent.parent
JARS = REPOSITORY / ".cache" / "jars"
HOST = "127.0.0.1"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
LOG_MODE = "page cache, no fsync before an ack (the default of both)"

# What Kafka's own start scripts pass to the JVM when nobody says otherwise.
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

# The one-node file that Kafka ships, less what it sets to its own defaults.
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(
                f"the broker ended with {process.returncode} while starting:\n{tail}"
            )
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.005)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port} after {START_SECONDS_MAX:.0f} s; see {log}")


@dataclass(slots=True, frozen=True)
class Usage:
    """CPU seconds spent so far and resident memory now, of one broker or of all of a cluster."""

    cpu_seconds: float
    resident_bytes: int


class Target(Protocol):
    """What is measured: a broker, or a cluster of them."""

    name: str
    #: Of every topic that a case makes.
    replicas: int

    @property
    def bootstrap(self) -> str: ...

    def start(self) -> None: ...

    def remove(self) -> None: ...

    def usage(self) -> Usage: ...


class Broker:
    """One process over one folder. `start` after `stop` reuses the folder; `remove` deletes it."""

    name = "broker"
    replicas = 1

    def __init__(self, port: int = 0) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix=f"bench-{self.name}-", dir=os.environ.get("BENCH_DIR"))
        )
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.prepare()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "process.log"

    def prepare(self) -> None:
        """What has to happen once in the folder before the first start; not part of any figure."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def spawn(self) -> None:
        """Starts the process without waiting for it."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )

    def start(self) -> None:
        self.spawn()
        assert self.process is not None
        wait_until_listening(self.port, self.process, self.log)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def usage(self) -> Usage:
        assert self.process is not None
        process = Path(f"/proc/{self.process.pid}")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        resident_pages = int((process / "statm").read_text().split()[1])
        return Usage(ticks / os.sysconf("SC_CLK_TCK"), resident_pages * os.sysconf("SC_PAGE_SIZE"))


class Kafka(Broker):
    """Apache Kafka, one node, KRaft, default settings."""

    name = "kafka"

    def prepare(self) -> None:
        settings = KAFKA_SETTINGS.format(
            host=HOST, port=self.port, controller_port=free_port(), data=self.folder / "data"
        )
        (self.folder / "server.properties").write_text(settings)
        logging = KAFKA_LOGGING.format(file=self.folder / "server.log")
        (self.folder / "log4j2.properties").write_text(logging)
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", "AAAAAAAAAAAAAAAAAAAAAQ"]
        subprocess.run(
            [*self.java("-Xmx256M"), *tool, "-c", str(self.folder / "server.properties")],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def java(self, *flags: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return ["java", *flags, logging, "-cp", f"{JARS}/*"]

    def command(self) -> list[str]:
        return [*self.java(*KAFKA_JVM), "kafka.Kafka", str(self.folder / "server.properties")]


class Millstream(Broker):
    """Millstream, one node, default settings."""

    name = "millstream"

    def __init__(self, port: int = 0) -> None:
        self.http_port = free_port()
        super().__init__(port)

    def command(self) -> list[str]:
        program = Path(sys.executable).with_name("millstream")
        listen = ["--listen", self.bootstrap, "--http", f"{HOST}:{self.http_port}"]
        return [str(program), "serve", "--data", str(self.folder / "data"), *listen]


BROKERS: dict[str, type[Broker]] = {Kafka.name: Kafka, Millstream.name: Millstream}
