"""A real broker with TLS, users and ACLs inside this process, for tests.

    with SecureBroker() as broker:
        producer = Producer(broker.bootstrap_servers, **broker.options("admin"))

Clients connect by SASL_SSL and log in by SCRAM-SHA-256 or SCRAM-SHA-512. The user `admin` may do
everything. Other users have no rights until a test creates ACLs. Authority, certificates and
passwords are made for this broker alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millstream.model.error import UsageError
from millstream.process.port import HOST
from millstream.security.local_authority import LocalAuthority, write_private
from millstream.testing.broker import LocalBroker

ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-256"
_PASSWORD_BYTES: Final = 18


class SecureBroker(LocalBroker):
    """A broker whose clients need a user. `users` are the names beside `admin`."""

    protocol = "SASL_SSL"

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        users: tuple[str, ...] = ("alice",),
    ) -> None:
        security = folder / "security"
        authority = LocalAuthority.open_or_create(security)
        authority.issue("broker", hosts=("localhost", HOST), days=2)
        #: Passwords by user name.
        self.passwords = {
            name: secrets.token_urlsafe(_PASSWORD_BYTES) for name in dict.fromkeys((ADMIN, *users))
        }
        lines = [f"{name}:{password}\n" for name, password in self.passwords.items()]
        write_private(security / "users", "".join(lines).encode())
        #: The certificate of the authority, which clients trust.
        self.ca_file = security / "ca.pem"
        own = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
            "ssl.keystore.location": security / "broker.pem",
            "ssl.truststore.location": self.ca_file,
            "bootstrap.users.file": security / "users",
        }
        super().__init__(folder / "data", own | dict(settings or {}))

    def options(self, user: str = ADMIN) -> dict[str, str]:
        """Return the keywords with which Millstream's clients connect as a user."""
        return {
            "security_protocol": self.protocol,
            "sasl_mechanism": MECHANISM,
            "sasl_username": user,
            "sasl_password": self._password(user),
            "ssl_cafile": str(self.ca_file),
        }

    def properties(self, user: str = ADMIN) -> dict[str, str]:
        """Return the properties with which a bare client of confluent-kafka connects as a user."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.protocol,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self._password(user),
            "ssl.ca.location": str(self.ca_file),
        }

    def _password(self, user: str) -> str:
        try:
            return self.passwords[user]
        except KeyError:
            known = ", ".join(self.passwords)
            raise UsageError(f"there is no user {user!r}: there are {known}") from None
