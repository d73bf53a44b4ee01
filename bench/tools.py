"""Runs the load tools, each in its own process and the same for every broker, and parses their
output.

The tools are Kafka's ProducerPerformance and ConsumerPerformance, kcat, and the programs in load/
and java/. Every run has a time limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import admin

from bench.brokers import JARS, REPOSITORY, Target
from bench.load.random_line import random_lines

RUN_SECONDS_MAX = 240.0
LINES_BYTES = 1 << 19
TRANSACTION_RECORD_BYTES = 1024
CLIENT_JVM = ["java", "-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]


@dataclass(slots=True, frozen=True)
class Throughput:
    """The records of a tool and its reported speed."""

    records: int
    records_per_second: float
    megabytes_per_second: float


def run(command: list[str]) -> str:
    """Run a tool and return its standard output. If it fails, the error has its message."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        cwd=REPOSITORY,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} exited with code {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return done.stdout


def java(name: str, *arguments: str) -> str:
    return run([*CLIENT_JVM, "-cp", f"{JARS}/*", name, *arguments])


def program(name: str, broker: Target, **options: Any) -> list[str]:
    """Return the command that runs a program of load/."""
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    flags += [f"--property={key}={value}" for key, value in broker.client_properties.items()]
    return [sys.executable, "-m", f"bench.load.{name}", f"--bootstrap={broker.bootstrap}", *flags]


def python(name: str, broker: Target, **options: Any) -> dict[str, Any]:
    """Run a program of load/ and return the JSON that it printed."""
    command = program(name, broker, **options)
    response: dict[str, Any] = json.loads(run(command).splitlines()[-1])
    return response


def admin_client(broker: Target) -> admin.AdminClient:
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    return admin.AdminClient({**settings, **broker.client_properties})


def java_properties(broker: Target) -> dict[str, str]:
    """Return the client properties of a target by the Java client's names."""
    given = dict(broker.client_properties)
    found: dict[str, str] = {}
    if authority := given.pop("ssl.ca.location", None):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if user := given.pop("sasl.username", None):
        password = given.pop("sasl.password")
        found["sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="{user}" password="{password}";'
        )
    return found | given


def java_config(broker: Target) -> list[str]:
    """Return Kafka's option for a file with the client properties. The file lies in the folder of
    the broker. Kafka's tools reject a property with `=` in its value as an argument."""
    properties = java_properties(broker)
    if not properties:
        return []
    file = Path(broker.client_properties["ssl.ca.location"]).with_name("client.properties")
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return ["--command-config", str(file)]


def create_topic(broker: Target, name: str, partitions: int) -> str:
    client = admin_client(broker)
    deadline = time.monotonic() + 60
    while True:
        try:
            client.create_topics([admin.NewTopic(name, partitions, broker.replicas)])[name].result(
                30
            )
        except confluent_kafka.KafkaException:
            # A broker that has just started to listen may not be ready for this.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return name


def delete_topics(broker: Target, *names: str) -> None:
    client = admin_client(broker)
    for future in client.delete_topics(list(names)).values():
        future.result(30)


def producer_performance(
    broker: Target,
    topic: str,
    records: int,
    size: int,
    rate: int = -1,
    warm_up_share: float = 0.2,
    **properties: Any,
) -> tuple[Throughput, dict[str, float]]:
    """Run Kafka's ProducerPerformance for throughput and latency percentiles in milliseconds.

    The first share of the records warms up its JVM and counts only in the number sent.
    """
    warm_up = ("--warmup-records", str(int(records * warm_up_share)))
    load = producer_load(broker, topic, records, size, rate, **properties)
    return parse_producer_performance(run([*load, *warm_up]))


def producer_load(
    broker: Target, topic: str, records: int, size: int, rate: int = -1, **properties: Any
) -> list[str]:
    """Return the command that runs Kafka's ProducerPerformance."""
    given = {"bootstrap.servers": broker.bootstrap, **properties}
    settings = [f"{key.replace('_', '.')}={value}" for key, value in given.items()]
    return [
        *(*CLIENT_JVM, "-cp", f"{JARS}/*", "org.apache.kafka.tools.ProducerPerformance"),
        *("--topic", topic, "--num-records", str(records), "--record-size", str(size)),
        *("--throughput", str(rate), "--command-property", *settings, *java_config(broker)),
    ]


def parse_producer_performance(printed: str) -> tuple[Throughput, dict[str, float]]:
    """Parse the last line: `N records ..., R records/sec (M MB/sec), ..., P ms 50th, ...`."""
    line = next(one for one in reversed(printed.splitlines()) if " ms 50th" in one)
    parts = line.split(", ")
    rate, _, rest = parts[1].partition(" records/sec (")
    latencies = {part.split()[2].rstrip("."): float(part.split()[0]) for part in parts[-4:]}
    throughput = Throughput(int(parts[0].split()[0]), float(rate), float(rest.split()[0]))
    return throughput, {
        "p50": latencies["50th"],
        "p99": latencies["99th"],
        "p99.9": latencies["99.9th"],
    }


def consumer_performance(broker: Target, topic: str, records: int) -> Throughput:
    """Run Kafka's ConsumerPerformance, which needs consumer groups. The join is not included."""
    printed = java(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", str(records)),
        *("--hide-header", "--timeout", "30000"),
        *java_config(broker),
    )
    fields = [field.strip() for field in printed.strip().splitlines()[-1].split(",")]
    return Throughput(int(fields[4]), float(fields[9]), float(fields[8]))


def assigned_consumer(broker: Target, topic: str, partitions: int, records: int) -> Throughput:
    """Run the Java consumer on assigned partitions."""
    program = str(REPOSITORY / "bench" / "java" / "AssignedConsumer.java")
    settings = [f"{key}={value}" for key, value in java_properties(broker).items()]
    printed = java(program, broker.bootstrap, topic, str(partitions), str(records), *settings)
    return to_throughput(json.loads(printed.splitlines()[-1]), records)


def librdkafka_consumer(broker: Target, topic: str, partitions: int, records: int) -> Throughput:
    found = python("read", broker, topic=topic, partitions=partitions, records=records)
    return to_throughput(found, records)


@dataclass(slots=True, frozen=True)
class TransactionLoad:
    """Transactions of `records` records, one after the other."""

    topic: str
    partitions: int
    records: int
    seconds: float
    warm_up_seconds: float


def librdkafka_transactions(broker: Target, load: TransactionLoad) -> dict[str, Any]:
    return python("transactions", broker, size=TRANSACTION_RECORD_BYTES, **asdict(load))


def java_transactions(broker: Target, load: TransactionLoad) -> dict[str, Any]:
    program = str(REPOSITORY / "bench" / "java" / "Transactions.java")
    amounts = (load.partitions, load.records, TRANSACTION_RECORD_BYTES)
    times = (load.seconds, load.warm_up_seconds)
    settings = [f"{key}={value}" for key, value in java_properties(broker).items()]
    arguments = [broker.bootstrap, load.topic, *(str(each) for each in (*amounts, *times))]
    arguments += settings
    found: dict[str, Any] = json.loads(java(program, *arguments).splitlines()[-1])
    return found


def to_throughput(found: dict[str, Any], expected: int) -> Throughput:
    if found["records"] < expected:
        raise RuntimeError(f"read {found['records']} of {expected} records")
    seconds = found["seconds"]
    return Throughput(
        found["records"], found["records"] / seconds, found["bytes"] / seconds / 2**20
    )


def kcat_producer(
    broker: Target, topic: str, records: int, size: int, codec: str, acks: str = "1"
) -> Throughput:
    """Run kcat, which sends the lines of a file, and return its duration."""
    with tempfile.NamedTemporaryFile() as lines:
        write_lines(Path(lines.name), records, size)
        begin = time.monotonic()
        run(
            [
                *("kcat", "-P", "-b", broker.bootstrap, "-t", topic, "-z", codec, "-l", lines.name),
                *("-X", f"acks={acks}", "-X", "queue.buffering.max.messages=500000"),
            ]
        )
        seconds = time.monotonic() - begin
    return Throughput(records, records / seconds, records * size / seconds / 2**20)


def librdkafka_producer(
    broker: Target, topic: str, records: int, size: int, codec: str
) -> Throughput:
    """Run a program of load/ that sends the same records as `kcat_producer`."""
    load = {"topic": topic, "records": records, "size": size, "codec": codec}
    return to_throughput(python("write", broker, **load), records)


def write_lines(path: Path, records: int, size: int) -> None:
    """Write lines of random letters, as ProducerPerformance sends them, which do not compress."""
    count = LINES_BYTES // size
    some = b"".join(line + b"\n" for line in random_lines(count, size))
    with path.open("wb") as file:
        for _ in range(records // count):
            file.write(some)
        file.write(some[: (records % count) * (size + 1)])
