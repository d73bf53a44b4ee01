"""The security keywords with TLS and SASL, on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.process.broker_process import wait_until
from harness.process.secure_kafka import PASSWORD, USER, Listeners, secure_kafka
from millstream.client import Admin, BrokerError, Consumer, Producer, Worker

pytestmark = pytest.mark.soak

SECONDS_MAX = 90.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[Listeners]:
    with secure_kafka() as listeners:
        yield listeners


def tls(kafka: Listeners) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.ssl,
        "security_protocol": "SSL",
        "ssl_cafile": kafka.folder / "ca.pem",
        "ssl_certfile": kafka.folder / "ca.pem",
        "ssl_keyfile": kafka.folder / "key.pem",
    }


def sasl(kafka: Listeners, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": kafka.sasl,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": kafka.folder / "ca.pem",
        "sasl_mechanism": mechanism,
        "sasl_username": USER,
        "sasl_password": password,
    }


@pytest.mark.parametrize("kind", ["TLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_all_clients_connect(kafka: Listeners, kind: str) -> None:
    options = tls(kafka) if kind == "TLS" else sasl(kafka, kind)
    topic = f"secret-{kind}"
    with Admin(**options) as admin:
        admin.create_topic(topic, partitions=1, replication_factor=1)
    worker = Worker(topics=[topic], group_id=topic, **options)
    done: list[bytes] = []
    worker.handler(lambda job: done.append(job.value))
    with Producer(**options) as producer, worker:
        producer.send(topic, "2 apples")
        with Consumer(topics=[topic], **options) as consumer:
            assert next(iter(consumer)).value == b"2 apples"
        wait_until(lambda: bool(done), "the worker to handle the message")
    assert done == [b"2 apples"]


def test_a_wrong_password_is_explained(kafka: Listeners) -> None:
    options = sasl(kafka, "SCRAM-SHA-256", "pen")
    sentence = "authentication.*Check security_protocol, sasl_mechanism"
    with Admin(timeout=5, **options) as admin, pytest.raises(BrokerError, match=sentence):
        admin.list_topics()
    with (
        Consumer(topics=["secret"], group_id="g", **options) as consumer,
        pytest.raises(BrokerError, match=sentence),
    ):
        consumer.poll(timeout=SECONDS_MAX)


def test_an_unknown_certificate_is_explained(kafka: Listeners) -> None:
    options = {"bootstrap_servers": kafka.ssl, "security_protocol": "SSL"}
    sentence = "certificate verify failed.*Check security_protocol and ssl_cafile"
    with Admin(timeout=5, **options) as admin, pytest.raises(BrokerError, match=sentence):  # type: ignore[arg-type]
        admin.list_topics()
