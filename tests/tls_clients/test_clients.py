"""Unmodified clients over TLS, with certificates of their own, on one broker and on three."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from harness.process.broker_process import HOST
from harness.process.brokers import ONE, REPLICATED, THREE, Brokers
from harness.process.process_cluster import ProcessCluster
from harness.process.tls_process import TlsBroker, TlsHome, with_tls_listener
from harness.tool.java import JVM, class_path, require_java

VALUES = [f"value {number}".encode() for number in range(2000)]
LINES = b"".join(value + b"\n" for value in VALUES)


class Secured(NamedTuple):
    """Running brokers with client certificates."""

    brokers: Brokers
    tls_bootstrap: str
    tls: TlsHome


@pytest.fixture(scope="module", params=[ONE, THREE])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("brokers")
    if request.param == 1:
        with TlsBroker(folder, ssl_client_auth="required") as one:
            yield Secured(Brokers({1: one}), one.tls_bootstrap, one.tls)
            assert "Traceback" not in one.log_text(), one.log_tail()
        return
    tls = TlsHome(folder / "tls")
    settings = {
        **REPLICATED,
        **tls.settings(ssl_client_auth="required"),
        "inter.broker.listener.name": "SSL",
    }
    cluster = ProcessCluster(folder, request.param, settings)
    ports = [with_tls_listener(each) for each in cluster]
    with cluster:
        brokers = Brokers({number: cluster[number] for number in range(1, request.param + 1)})
        brokers.wait_until_registered()
        yield Secured(brokers, ",".join(f"{HOST}:{port}" for port in ports), tls)
        brokers.check_logs()


def topic(broker: Secured, name: str) -> str:
    broker.brokers.create_topic(name)
    return name


def test_confluent_kafka(broker: Secured) -> None:
    name = topic(broker, "confluent")
    properties = {"bootstrap.servers": broker.tls_bootstrap, **broker.tls.properties("alice")}
    producer = Producer({**properties, "linger.ms": 5})
    for value in VALUES:
        producer.produce(name, value)
    assert producer.flush(60) == 0
    consumer = Consumer({**properties, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    found: list[bytes] = []
    while len(found) < len(VALUES):
        found += [message.value() for message in consumer.consume(500, 30)]
    consumer.close()
    assert found == VALUES


def test_large_messages(broker: Secured) -> None:
    """Fetches of many megabytes, which leave in chunks."""
    name = topic(broker, "large")
    properties = {"bootstrap.servers": broker.tls_bootstrap, **broker.tls.properties("alice")}
    producer = Producer(properties)
    values = [bytes([number]) * 900_000 for number in range(40)]
    for value in values:
        producer.produce(name, value)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            **properties,
            "group.id": "large",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 50_000_000,
        }
    )
    consumer.subscribe([name])
    found: list[bytes] = []
    while len(found) < len(values):
        found += [message.value() for message in consumer.consume(40, 30)]
    consumer.close()
    assert found == values


def test_aiokafka(broker: Secured) -> None:
    name = topic(broker, "aiokafka")
    settings = {
        "bootstrap_servers": broker.tls_bootstrap,
        "security_protocol": "SSL",
        "ssl_context": broker.tls.context("alice"),
    }

    async def main() -> list[bytes]:
        async with AIOKafkaProducer(**settings) as producer:
            await asyncio.gather(*[await producer.send(name, value) for value in VALUES])
        found: list[bytes] = []
        async with AIOKafkaConsumer(name, auto_offset_reset="earliest", **settings) as consumer:
            async for message in consumer:
                found.append(message.value)
                if len(found) == len(VALUES):
                    break
        return found

    assert asyncio.run(main()) == VALUES


#: kafka-python warns when it is imported, so it runs in a process of its own.
KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer, KafkaProducer
servers, topic, folder, count = sys.argv[1:]
settings = dict(
    bootstrap_servers=servers,
    security_protocol="SSL",
    ssl_cafile=f"{folder}/ca.pem",
    ssl_certfile=f"{folder}/alice.crt",
    ssl_keyfile=f"{folder}/alice.key",
)
producer = KafkaProducer(**settings)
for number in range(int(count)):
    producer.send(topic, f"value {number}".encode())
producer.flush(60)
producer.close()
consumer = KafkaConsumer(
    topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **settings
)
for _, message in zip(range(int(count)), consumer):
    print(message.value.decode())
"""


def test_kafka_python(broker: Secured) -> None:
    name = topic(broker, "kafka-python")
    broker.tls.client("alice")
    arguments = [broker.tls_bootstrap, name, str(broker.tls.folder), str(len(VALUES))]
    done = subprocess.run(
        [sys.executable, "-c", KAFKA_PYTHON, *arguments],
        check=True,
        timeout=120,
        capture_output=True,
    )
    assert done.stdout == LINES


def test_kcat(broker: Secured) -> None:
    name = topic(broker, "kcat")
    options = ["kcat", "-b", broker.tls_bootstrap, "-t", name]
    for key, value in broker.tls.properties("alice").items():
        options += ["-X", f"{key}={value}"]
    subprocess.run([*options, "-P"], input=LINES, check=True, timeout=60)
    done = subprocess.run(
        [*options, "-C", "-e", "-q", "-o", "beginning"],
        check=True,
        timeout=60,
        capture_output=True,
    )
    assert done.stdout == LINES


def test_java_console_tools(broker: Secured, tmp_path: Path) -> None:
    require_java("jars")
    name = topic(broker, "java")
    config = tmp_path / "client.properties"
    config.write_text(broker.tls.java_properties("alice"))
    java = [*JVM, "-cp", class_path("jars")]
    subprocess.run(
        [
            *java,
            "org.apache.kafka.tools.ConsoleProducer",
            "--bootstrap-server",
            broker.tls_bootstrap,
            "--topic",
            name,
            "--command-config",
            str(config),
        ],
        input=LINES,
        check=True,
        timeout=120,
    )
    done = subprocess.run(
        [
            *java,
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server",
            broker.tls_bootstrap,
            "--topic",
            name,
            "--from-beginning",
            "--max-messages",
            str(len(VALUES)),
            "--timeout-ms",
            "60000",
            "--command-config",
            str(config),
        ],
        check=True,
        timeout=120,
        capture_output=True,
    )
    assert done.stdout == LINES
