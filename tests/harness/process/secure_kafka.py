"""Apache Kafka with TLS and SASL listeners."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from harness.process.broker_process import HOST, free_port
from harness.process.kafka_process import kafka_broker

USER = "alice"
PASSWORD = "pencil"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SETTINGS = """
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config={plain} required user_alice="pencil";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram} required;
"""


class Listeners(NamedTuple):
    """The addresses of the listeners, and the folder of the certificates.

    The listener `ssl` asks for the client's certificate, `sasl` for a user and a password.
    """

    plain: str
    ssl: str
    sasl: str
    folder: Path


@contextmanager
def secure_kafka() -> Iterator[Listeners]:
    """Run a broker with the user `USER`, for PLAIN and SCRAM."""
    with kafka_broker() as broker:
        folder: Path = broker.folder
        make_certificates(folder)
        ssl, sasl = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
        path = folder / "server.properties"
        more = f",SSL://{ssl},SASL_SSL://{sasl}"
        lines = [
            line + more if line.startswith(("listeners=", "advertised.listeners=")) else line
            for line in path.read_text().splitlines()
        ]
        settings = _SETTINGS.format(folder=folder, plain=_PLAIN, scram=SCRAM_MODULE)
        path.write_text("\n".join(lines) + settings)
        broker.start()
        _add_user(broker.bootstrap)
        yield Listeners(broker.bootstrap, ssl, sasl, folder)


def make_certificates(folder: Path) -> None:
    """Create one certificate for authority, server and client."""
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


def _add_user(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        secret = ScramCredentialInfo(kind, 4096)
        user = UserScramCredentialUpsertion(USER, secret, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(60)
