"""The source and the sink with TLS and SASL, on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from harness.process.secure_kafka import SCRAM_MODULE, make_certificates, secure_kafka
from harness.spark_reading import read_source
from millstream.model.error import BrokerError
from millstream.spark.error import ProtocolError

pytestmark = pytest.mark.soak

TOPIC = "secret"
COPY = "copy"
COUNT = 50


class Secure(NamedTuple):
    """The addresses of the listeners, and the folder of the certificates."""

    ssl: str
    sasl: str
    folder: Path

    def options(self, servers: str, protocol: str, **more: str) -> dict[str, str]:
        given = {name.replace("__", "."): value for name, value in more.items()}
        return {
            "subscribe": TOPIC,
            "kafka.bootstrap.servers": servers,
            "kafka.security.protocol": protocol,
            "kafka.ssl.ca.location": str(self.folder / "ca.pem"),
            "kafka.default.api.timeout.ms": "60000",
        } | {f"kafka.{name}": value for name, value in given.items()}


@pytest.fixture(scope="module")
def secure() -> Iterator[Secure]:
    with secure_kafka() as listeners:
        _fill(listeners.plain)
        yield Secure(listeners.ssl, listeners.sasl, listeners.folder)


def _fill(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic(COPY, 1, 1)]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(COUNT):
        producer.produce(TOPIC, f"value-{number}")
    assert producer.flush(60) == 0


def _check(options: dict[str, str]) -> None:
    assert [row.offset for row in read_source(options)] == list(range(COUNT))


def test_tls_with_a_certificate_of_the_client(secure: Secure) -> None:
    key, certificate = str(secure.folder / "key.pem"), str(secure.folder / "ca.pem")
    _check(
        secure.options(
            secure.ssl, "SSL", ssl__key__location=key, ssl__certificate__location=certificate
        )
    )
    stores = {
        "ssl__keystore__type": "PEM",
        "ssl__keystore__location": str(secure.folder / "server.pem"),
    }
    _check(secure.options(secure.ssl, "SSL", **stores))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_over_tls(secure: Secure, mechanism: str) -> None:
    more = {"sasl__mechanism": mechanism, "sasl__username": "alice", "sasl__password": "pencil"}
    _check(secure.options(secure.sasl, "SASL_SSL", **more))
    with pytest.raises(BrokerError, match="SASL_AUTHENTICATION_FAILED"):
        read_source(secure.options(secure.sasl, "SASL_SSL", **more | {"sasl__password": "pen"}))


def test_an_unknown_certificate_is_rejected(secure: Secure, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    options: dict[str, Any] = secure.options(
        secure.sasl,
        "SASL_SSL",
        sasl__mechanism="PLAIN",
        sasl__username="alice",
        sasl__password="pencil",
        ssl__ca__location=str(tmp_path / "ca.pem"),
        default__api__timeout__ms="1000",
    )
    with pytest.raises(ProtocolError, match=r"(?i)certificate"):
        read_source(options)


def test_spark_reads_and_writes(spark: SparkSession, secure: Secure) -> None:
    jaas = f'{SCRAM_MODULE} required username="alice" password="pencil";'
    options = secure.options(
        secure.sasl, "SASL_SSL", sasl__mechanism="SCRAM-SHA-512", sasl__jaas__config=jaas
    )
    frame = spark.read.format("millstream").options(**options).load()
    writing = {name: value for name, value in options.items() if name != "subscribe"}
    target = frame.selectExpr("value", f"'{COPY}' as topic").write.format("millstream")
    target.options(**writing).mode("append").save()
    copy = spark.read.format("millstream").options(**options | {"subscribe": COPY}).load()
    assert copy.count() == COUNT
