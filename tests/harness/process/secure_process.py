"""A broker process with every kind of listener, users, and ACLs.

    with SecureProcess(tmp_path) as broker:
        producer = Producer(broker.properties("SASL_SSL", user="admin"))

The user `admin` may do everything. Other users, and clients without a user, may do nothing until
a test creates ACLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.process.broker_process import HOST, BrokerProcess, free_port
from millstream.security.local_authority import LocalAuthority

ADMIN = "admin"
PASSWORDS = {ADMIN: "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class SecureProcess(BrokerProcess):
    """A broker with a listener for each protocol, which has the protocol's name."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        security = folder / "security"
        authority = LocalAuthority.open_or_create(security)
        authority.issue("broker", hosts=("localhost", HOST), days=2)
        authority.issue("carol", days=2)
        users = security / "users"
        users.write_text("".join(f"{name}:{text}\n" for name, text in PASSWORDS.items()))
        own = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
            "ssl.keystore.location": security / "broker.pem",
            "ssl.truststore.location": security / "ca.pem",
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "bootstrap.users.file": users,
            "http.bearer.token": "of-the-test",
        }
        super().__init__(folder, {**own, **(settings or {})})
        self.security = security
        self.ports = {protocol: free_port() for protocol in PROTOCOLS}
        self.port = self.ports["PLAINTEXT"]
        self.listeners = [f"{name}://{HOST}:{port}" for name, port in self.ports.items()]

    def address(self, protocol: str) -> str:
        return f"{HOST}:{self.ports[protocol]}"

    def properties(
        self, protocol: str, user: str = ADMIN, mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, str]:
        """Return the properties with which librdkafka connects. SSL has carol's certificate."""
        found = {"bootstrap.servers": self.address(protocol), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.security / "ca.pem")
        if protocol == "SSL":
            found["ssl.certificate.location"] = str(self.security / "carol.crt")
            found["ssl.key.location"] = str(self.security / "carol.key")
        if protocol.startswith("SASL"):
            found |= {
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": PASSWORDS[user],
            }
        return found
