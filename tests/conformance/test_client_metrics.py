"""Client metrics and logger levels with Kafka's own tools, the Java client and librdkafka, on one
broker and on three.

Tests share each cluster; every test removes the subscriptions that it created.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import pytest
from confluent_kafka import Consumer, Producer
from locations import JARS

from harness.process.broker_process import BrokerProcess, wait_until
from harness.process.process_cluster import ProcessCluster
from kafka_tools.runner import ToolRunner

pytestmark = pytest.mark.xdist_group("client-metrics")

JAVA = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
SECONDS_MAX = 120.0
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"

BROKERS = [
    pytest.param(1, id="one broker", marks=pytest.mark.soak),
    pytest.param(3, id="three brokers"),
]

Brokers = list[BrokerProcess]
Tool = Callable[..., str]


@pytest.fixture(scope="module", params=BROKERS)
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    folder = tmp_path_factory.mktemp("client-metrics")
    if request.param == 1:
        with BrokerProcess(folder) as broker:
            yield [broker]
        return
    settings = {"default.replication.factor": 3, "offsets.topic.num.partitions": 3}
    with ProcessCluster(folder, 3, settings) as cluster:
        yield list(cluster)


@pytest.fixture
def tool(brokers: Brokers, tools: ToolRunner) -> Tool:
    """Run one of Kafka's tools and return its output."""

    def run(name: str, *arguments: str, code: int = 0) -> str:
        done = tools.run(name, "--bootstrap-server", bootstrap(brokers), *arguments)
        assert done.exit == code, done
        return done.out + done.err if code else done.out

    return run


@pytest.fixture
def subscription(tool: Tool) -> Iterator[str]:
    """Subscribe to all metrics of all clients at a short interval."""
    tool(CLIENT_METRICS, "--alter", "--name", "all", "--metrics", "*", "--interval", "200")
    yield "all"
    tool(CLIENT_METRICS, "--delete", "--name", "all")


def bootstrap(brokers: Brokers) -> str:
    return ",".join(broker.bootstrap for broker in brokers)


def rows(broker: BrokerProcess, client_id: str) -> dict[str, tuple[dict[str, str], float]]:
    """Return one row of each family that a client pushed to this broker: labels and value."""
    if not broker.is_alive():
        return {}
    url = f"http://{broker.host}:{broker.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        text = response.read().decode()
    found = {}
    for name, labels, value in re.findall(r"^(kafka_client_\w+)\{(.*)\} (\S+)$", text, re.M):
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if pairs["client_id"] == client_id:
            found[name] = ({key: each for key, each in pairs.items() if each}, float(value))
    return found


def home_of(brokers: Brokers, client_id: str, family: str) -> BrokerProcess:
    """Wait until a client has pushed a family; return the broker that has it."""
    found: list[BrokerProcess] = []

    def look() -> bool:
        found[:] = [broker for broker in brokers if family in rows(broker, client_id)]
        return bool(found)

    wait_until(look, f"{family} of {client_id}", SECONDS_MAX)
    return found[0]


@contextmanager
def java(brokers: Brokers, name: str, *arguments: str) -> Iterator[IO[bytes]]:
    """Run a tool that reads lines from the stream until it is closed; terminate it at the end."""
    command = [*JAVA, name, "--bootstrap-server", bootstrap(brokers), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        try:
            yield process.stdin
        finally:
            if process.stdin.closed:
                process.wait(SECONDS_MAX)
            process.terminate()


def test_subscriptions_with_kafkas_tool(tool: Tool) -> None:
    assert tool(CLIENT_METRICS, "--list").strip() == ""
    match = "client_software_name=apache.*,client_id=a b"
    metrics = "org.apache.kafka.producer.,org.apache.kafka.consumer."
    arguments = ["--metrics", metrics, "--interval", "1000", "--match", match]
    done = tool(CLIENT_METRICS, "--alter", "--name", "sub", *arguments)
    assert done.strip() == "Altered client metrics config for sub."
    assert tool(CLIENT_METRICS, "--describe", "--name", "sub").splitlines() == [
        "Client metrics configs for sub are:",
        "  interval.ms=1000",
        f"  match={match}",
        f"  metrics={metrics}",
    ]
    assert tool(CLIENT_METRICS, "--list").split() == ["sub"]
    failed = tool(CLIENT_METRICS, "--alter", "--name", "sub", "--interval", "5", code=1)
    assert "interval must be between 100 and 3600000 (1 hour)" in failed
    assert "metrics=org" in tool(CONFIGS, "--entity-type", "client-metrics", "--describe")
    tool(CLIENT_METRICS, "--delete", "--name", "sub")
    assert tool(CLIENT_METRICS, "--list").strip() == ""


def test_without_subscriptions_clients_push_nothing(brokers: Brokers, tool: Tool) -> None:
    requests = 'millstream_requests_total{api="%s"}'

    def count(api: str) -> float:
        return sum(broker.metric(requests % api) for broker in brokers)

    asked, pushed = count("GetTelemetrySubscriptions"), count("PushTelemetry")
    with java(brokers, PRODUCER, "--topic", "quiet") as lines:
        lines.write(b"a\n")
        lines.flush()
        wait_until(
            lambda: count("GetTelemetrySubscriptions") > asked, "the client to ask", SECONDS_MAX
        )
        lines.close()
    assert count("GetTelemetrySubscriptions") == asked + 1
    assert count("PushTelemetry") == pushed


@pytest.mark.usefixtures("subscription")
def test_the_java_client(brokers: Brokers) -> None:
    arguments = ["--topic", "java", "--command-property", "client.id=java producer"]
    family = "kafka_client_producer_record_send_total"
    with java(brokers, PRODUCER, *arguments) as lines:
        lines.write(b"a\n")
        lines.flush()
        home = home_of(brokers, "java producer", family)
        labels, _ = rows(home, "java producer")[family]
        assert labels["client_software_name"] == "apache-kafka-java"
        assert labels["client_instance_id"]
        lines.write(b"b\nc\n")
        lines.flush()
        wait_until(lambda: rows(home, "java producer")[family][1] == 3, "all sent", SECONDS_MAX)
        lines.close()
    assert rows(home, "java producer")[family][1] == 3, "a scrape still sees the last values"
    arguments = ["--topic", "java", "--group", "java-group", "--from-beginning"]
    arguments += ["--command-property", "client.id=java-consumer"]
    with java(brokers, CONSUMER, *arguments):
        family = "kafka_client_consumer_fetch_manager_records_consumed_total"
        home = home_of(brokers, "java-consumer", family)
        wait_until(
            lambda: rows(home, "java-consumer")[family][1] == 3, "three records", SECONDS_MAX
        )
        assert rows(home, "java-consumer")[family][0]["group_id"] == "java-group"


@pytest.mark.usefixtures("subscription")
def test_librdkafka(brokers: Brokers) -> None:
    address = {"bootstrap.servers": bootstrap(brokers), "log_level": 0}
    producer = Producer({**address, "client.id": "rd-producer"})
    producer.produce("rd", b"a")
    assert producer.flush(SECONDS_MAX) == 0
    family = "kafka_client_producer_connection_creation_total"
    home = home_of(brokers, "rd-producer", family)
    labels, value = rows(home, "rd-producer")[family]
    assert labels["client_software_name"].startswith(("confluent-kafka-python", "librdkafka"))
    assert value >= 1
    group = {"group.id": "rd-group", "auto.offset.reset": "earliest"}
    consumer = Consumer({**address, **group, "client.id": "rd-consumer"})
    try:
        consumer.subscribe(["rd"])
        wait_until(lambda: consumer.poll(0.2) is not None, "the record", SECONDS_MAX)
        family = "kafka_client_consumer_connection_creation_total"
        home = home_of(brokers, "rd-consumer", family)
        wait_until(
            lambda: rows(home, "rd-consumer")[family][0].get("group_id") == "rd-group",
            "the group",
            SECONDS_MAX,
        )
    finally:
        consumer.close()


@pytest.mark.usefixtures("subscription")
def test_disconnected_clients_are_removed(brokers: Brokers) -> None:
    def instances() -> float:
        return sum(broker.metric("millstream_client_instances") for broker in brokers)

    producer = Producer({"bootstrap.servers": bootstrap(brokers), "client.id": "leaver"})
    home_of(brokers, "leaver", "kafka_client_producer_connection_creation_total")
    assert instances() >= 1
    del producer
    wait_until(lambda: instances() == 0, "the client to be forgotten", SECONDS_MAX)


@pytest.mark.usefixtures("subscription")
@pytest.mark.parametrize("brokers", [pytest.param(3, id="three brokers")], indirect=True)
def test_a_client_continues_with_another_broker(brokers: Brokers) -> None:
    family = "kafka_client_producer_connection_creation_total"
    producer = Producer({"bootstrap.servers": bootstrap(brokers), "client.id": "mover"})
    home = home_of(brokers, "mover", family)
    instance_id = rows(home, "mover")[family][0]["client_instance_id"]
    home.kill()
    try:
        other = home_of([each for each in brokers if each is not home], "mover", family)
        assert rows(other, "mover")[family][0]["client_instance_id"] == instance_id
    finally:
        home.start()
    assert producer.flush(SECONDS_MAX) == 0


def test_levels_of_loggers_with_kafkas_tool(brokers: Brokers, tool: Tool) -> None:
    def levels(node_id: int) -> dict[str, str]:
        text = tool(
            CONFIGS, "--entity-type", "broker-loggers", "--entity-name", str(node_id), "--describe"
        )
        return dict(re.findall(r"^  (\S+)=(\w+) sensitive=false synonyms=\{\}$", text, re.M))

    def alter(node_id: int, *arguments: str, code: int = 0) -> str:
        entity = ["--entity-type", "broker-loggers", "--entity-name", str(node_id)]
        return tool(CONFIGS, *entity, "--alter", *arguments, code=code)

    last = len(brokers)
    name = "millstream.replication"
    assert levels(last)[name] == levels(last)["root"] == "INFO"
    alter(last, "--add-config", f"{name}=DEBUG,root=WARN")
    found = levels(last)
    assert (found[name], found["root"], found["millstream.net.connection"]) == (
        "DEBUG",
        "WARN",
        "WARN",
    )
    if last > 1:
        assert levels(1)[name] == "INFO"
    alter(last, "--delete-config", name)
    assert levels(last)[name] == "WARN"
    alter(last, "--add-config", "root=INFO")
    assert "not allowed" in alter(last, "--delete-config", "root", code=1)
