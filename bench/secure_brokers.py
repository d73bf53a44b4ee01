"""The brokers of `--secure`: TLS, SCRAM-SHA-256 and ACLs, with the same settings for both.

Each broker also has a listener without security. It is used before the measurement: to create the
user and the ACLs. The user may only use what the load programs use.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import admin

from bench.brokers import KAFKA_SETTINGS, Broker, Kafka, Millstream
from millstream.process.broker_server import BrokerServer
from millstream.process.port import HOST, free_port

USER = "bench"
PASSWORD = "bench-password"
MECHANISM = "SCRAM-SHA-256"
SETUP_SECONDS_MAX = 60.0

KAFKA_SECURITY = """\
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""

MILLSTREAM_SECURITY = """\
"ssl.keystore.location" = "{folder}/server.pem"
"ssl.truststore.location" = "{folder}/ca.pem"
"sasl.enabled.mechanisms" = "SCRAM-SHA-256"
"authorizer.class.name" = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"super.users" = "User:ANONYMOUS"
"http.bearer.token" = "{token}"
"""
HTTP_TOKEN = "bench-token"


class _Security:
    """The user of one broker, its rights, and what clients need to log in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain_port = free_port()
        self._has_user = False
        _make_certificate(folder)

    @property
    def client_properties(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }

    def set_up(self) -> None:
        """Create the user and its ACLs, once."""
        if self._has_user:
            return
        client = admin.AdminClient({"bootstrap.servers": f"{HOST}:{self.plain_port}"})
        info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, 4096)
        user = admin.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        _retry(lambda: client.alter_user_scram_credentials([user]))
        _retry(lambda: client.create_acls(_acls()))
        self._has_user = True


def _acls() -> list[admin.AclBinding]:
    kinds = (
        (admin.ResourceType.TOPIC, "*"),
        (admin.ResourceType.GROUP, "*"),
        (admin.ResourceType.TRANSACTIONAL_ID, "*"),
        (admin.ResourceType.BROKER, "kafka-cluster"),
    )
    return [
        admin.AclBinding(
            kind,
            name,
            admin.ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            admin.AclOperation.ALL,
            admin.AclPermissionType.ALLOW,
        )
        for kind, name in kinds
    ]


def _retry(call: Callable[[], Mapping[Any, Any]]) -> None:
    """Call until the broker, which may have just started to listen, accepts the request."""
    deadline = time.monotonic() + SETUP_SECONDS_MAX
    while True:
        try:
            for done in call().values():
                done.result(10)
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _make_certificate(folder: Path) -> None:
    """Create one certificate, which is also its own authority. Not part of any figure."""
    subject = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}", "-days", "2"]
    files = ["-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    both = (folder / "key.pem").read_text() + (folder / "ca.pem").read_text()
    (folder / "server.pem").write_text(both)


class SecureBroker(Broker):
    """What both brokers share: the user is created when the broker first runs."""

    security: _Security

    @property
    def plain_port(self) -> int:
        return self.security.plain_port

    def start(self) -> None:
        super().start()
        self.security.set_up()


class SecureKafka(SecureBroker, Kafka):
    """Apache Kafka with TLS, SCRAM and ACLs."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.security = _Security(self.folder)
        self.client_properties = self.security.client_properties
        ours, plain = self.server.port, self.security.plain_port
        settings = KAFKA_SETTINGS.format(
            host=HOST, port=plain, controller_port=free_port(), data=self.server.data
        )
        for name in ("listeners", "advertised.listeners"):
            settings = settings.replace(
                f"\n{name}=PLAINTEXT", f"\n{name}=SASL_SSL://{HOST}:{ours},PLAINTEXT"
            )
        text = settings + KAFKA_SECURITY.format(folder=self.folder)
        (self.folder / "server.properties").write_text(text)


class SecureMillstream(SecureBroker, Millstream):
    """Millstream with TLS, SCRAM and ACLs."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.security = _Security(self.folder)
        self.client_properties = self.security.client_properties
        server = self.server
        assert isinstance(server, BrokerServer)
        file = self.folder / "security.toml"
        file.write_text(MILLSTREAM_SECURITY.format(folder=self.folder, token=HTTP_TOKEN))
        server.config_file = file
        server.http_token = HTTP_TOKEN
        server.listeners = (
            f"SASL_SSL://{HOST}:{server.port}",
            f"PLAINTEXT://{HOST}:{self.security.plain_port}",
        )
        server.settings["inter.broker.listener.name"] = "PLAINTEXT"


SECURE_BROKERS: dict[str, type[SecureKafka | SecureMillstream]] = {
    Kafka.name: SecureKafka,
    Millstream.name: SecureMillstream,
}
