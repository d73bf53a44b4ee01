"""Makes the brokers of a run secure: TLS on every connection, logins by SCRAM, and ACLs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from millstream.process.broker_server import BrokerServer
from millstream.security.local_authority import LocalAuthority

PROTOCOL = "SASL_SSL"
#: The user of the brokers, and that of the clients. Both may do everything.
PASSWORDS = {"broker": "broker-secret", "client": "client-secret"}
HTTP_TOKEN = "of-the-test"
_MECHANISM = "SCRAM-SHA-512"
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def make_secure(brokers: Sequence[BrokerServer], folder: Path) -> dict[str, str]:
    """Give brokers that have not started certificates, users and ACLs. Returns the properties with
    which clients connect."""
    authority = LocalAuthority.open_or_create(folder)
    # A fault shifts wall clocks by hours, so the certificate is valid for longer than that.
    authority.issue("broker", hosts=[broker.host for broker in brokers], days=30)
    users = folder / "users"
    users.write_text("".join(f"{name}:{text}\n" for name, text in PASSWORDS.items()))
    login = f'{_MODULE} required username="broker" password="{PASSWORDS["broker"]}";'
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in PASSWORDS),
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.mechanism.inter.broker.protocol": _MECHANISM,
        f"listener.name.{PROTOCOL.lower()}.{_MECHANISM.lower()}.sasl.jaas.config": login,
        "bootstrap.users.file": str(users),
        "http.bearer.token": HTTP_TOKEN,
        # Logins expire during a run.
        "connections.max.reauth.ms": 30_000,
    }
    file = folder / "brokers.toml"
    file.write_text(
        "".join(f"{json.dumps(name)} = {json.dumps(settings[name])}\n" for name in settings)
    )
    for broker in brokers:
        broker.config_file = file
        broker.http_token = HTTP_TOKEN
        broker.listeners = [f"{PROTOCOL}://{broker.bootstrap}"]
    return {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": _MECHANISM,
        "sasl.username": "client",
        "sasl.password": PASSWORDS["client"],
        "ssl.ca.location": str(folder / "ca.pem"),
    }
