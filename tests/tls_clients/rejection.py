"""Clients that must not talk to a broker whose certificate is wrong. Each raises if it cannot."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harness.leftover import collecting
from harness.process.tls_process import TlsHome
from harness.tool.java import CACHE, JVM, class_path

SECONDS_MAX = 60.0
#: kafka-python warns when it is imported, so it runs in a process of its own.
_KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer
servers, ca, certificate, key = sys.argv[1:]
consumer = KafkaConsumer(
    bootstrap_servers=servers, security_protocol="SSL", ssl_cafile=ca, ssl_certfile=certificate,
    ssl_keyfile=key, bootstrap_timeout_ms=3000,
)
consumer.topics()
"""
_KAFKAJS = """
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')
const [bootstrap, ca, cert, key] = process.argv.slice(1)
const read = name => fs.readFileSync(name)
const kafka = new Kafka({
  brokers: [bootstrap], ssl: { ca: [read(ca)], cert: read(cert), key: read(key) },
  retry: { retries: 0 }, logLevel: logLevel.ERROR,
})
const admin = kafka.admin()
admin.connect().then(() => admin.listTopics()).then(() => admin.disconnect())
  .catch(error => { console.error(error.message); process.exit(1) })
"""


class RejectedError(Exception):
    """The client and the broker do not talk to each other."""


def confluent(bootstrap: str, tls: TlsHome, client: str) -> None:
    properties = {"bootstrap.servers": bootstrap, "log_level": 0, **tls.properties(client)}
    try:
        AdminClient(properties).list_topics(timeout=3)
    except KafkaException as error:
        raise RejectedError(str(error)) from error


def aiokafka(bootstrap: str, tls: TlsHome, client: str) -> None:
    async def main() -> str:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, security_protocol="SSL", ssl_context=tls.context(client)
        )
        try:
            await producer.start()
        except KafkaError as error:
            return str(error) or type(error).__name__
        finally:
            await producer.stop()
        return ""

    with collecting("aiokafka"):
        failure = asyncio.run(main())
    if failure:
        raise RejectedError(failure)


def kafka_python(bootstrap: str, tls: TlsHome, client: str) -> None:
    _run([sys.executable, "-W", "ignore", "-c", _KAFKA_PYTHON, bootstrap, *_files(tls, client)])


def kafkajs(bootstrap: str, tls: TlsHome, client: str) -> None:
    os.environ["NODE_PATH"] = str(CACHE / "node" / "node_modules")
    _run(["node", "-e", _KAFKAJS, bootstrap, *_files(tls, client)])


def kcat(bootstrap: str, tls: TlsHome, client: str) -> None:
    flags = [f"-X{name}={value}" for name, value in tls.properties(client).items()]
    _run(["kcat", "-b", bootstrap, *flags, "-L", "-m", "3"])


def java(bootstrap: str, tls: TlsHome, client: str) -> None:
    config = tls.folder / f"{client}.properties"
    config.write_text(
        tls.java_properties(client) + "request.timeout.ms=8000\ndefault.api.timeout.ms=9000\n"
    )
    tool = "org.apache.kafka.tools.TopicCommand"
    arguments = ["--bootstrap-server", bootstrap, "--command-config", str(config), "--list"]
    _run([*JVM, "-cp", class_path("jars"), tool, *arguments])


def _files(tls: TlsHome, client: str) -> list[str]:
    tls.client(client)
    return [tls.ca, str(tls.folder / f"{client}.crt"), str(tls.folder / f"{client}.key")]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS_MAX)
    if done.returncode:
        raise RejectedError((done.stdout + done.stderr).decode())


CLIENTS: dict[str, Callable[[str, TlsHome, str], None]] = {
    "confluent": confluent,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
    "kafkajs": kafkajs,
    "kcat": kcat,
    "java": java,
}
