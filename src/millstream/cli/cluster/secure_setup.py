"""The certificates, users and settings of `millstream cluster up --secure`.

    DIR/security/ca.pem, broker.pem, ...   a local authority and the certificate of the brokers
    DIR/security/users                     NAME:PASSWORD of the first users
    DIR/security/http.token                the token for the HTTP ports
    DIR/security/brokers.toml              the settings of all brokers
    DIR/security/profiles.toml             the profile `admin` for the command line

Existing files are kept, so that the same folder starts the same cluster again. Files with secrets
can be read only by their owner.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Final

from millstream.cli.support.profile import FILE_VARIABLE, Profile, Profiles
from millstream.process.port import HOST

ADMIN: Final = "admin"
PROTOCOL: Final = "SASL_SSL"
_BROKER: Final = "broker"
_MECHANISM: Final = "SCRAM-SHA-512"
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_HOSTS: Final = ("localhost", HOST, "::1")
_DAYS: Final = 365
_PASSWORD_BYTES: Final = 18


class SecureSetup:
    """The files of one cluster. `prepare` creates what is missing."""

    __slots__ = ("folder",)

    def __init__(self, cluster_folder: Path) -> None:
        self.folder = cluster_folder / "security"

    @property
    def settings_file(self) -> Path:
        """The settings of all brokers."""
        return self.folder / "brokers.toml"

    @property
    def profile_file(self) -> Path:
        return self.folder / "profiles.toml"

    @property
    def http_token(self) -> str:
        return (self.folder / "http.token").read_text().strip()

    def prepare(self, servers: str) -> None:
        """Create the certificates, the users, the settings and the profile. Raises OSError."""
        from millstream.security.local_authority import LocalAuthority, write_private

        authority = LocalAuthority.open_or_create(self.folder)
        if not (self.folder / "broker.pem").exists():
            authority.issue(_BROKER, hosts=_HOSTS, days=_DAYS)
        passwords = self._passwords()
        token = self.folder / "http.token"
        if not token.exists():
            write_private(token, secrets.token_urlsafe(_PASSWORD_BYTES).encode())
        write_private(self.settings_file, self._settings(passwords[_BROKER]).encode())
        self._write_profile(servers, passwords[ADMIN])

    def _passwords(self) -> dict[str, str]:
        """Return the passwords of the first users. They are made once."""
        from millstream.security.local_authority import write_private

        file = self.folder / "users"
        if not file.exists():
            lines = [
                f"{name}:{secrets.token_urlsafe(_PASSWORD_BYTES)}\n" for name in (ADMIN, _BROKER)
            ]
            write_private(file, "".join(lines).encode())
        pairs = (line.partition(":") for line in file.read_text().splitlines())
        return {name: password for name, _, password in pairs}

    def _settings(self, password: str) -> str:
        login = f'{_SCRAM_MODULE} required username="{_BROKER}" password="{password}";'
        settings = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:{_BROKER}",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            # PLAIN is for clients whose SCRAM fails, such as librdkafka before 2.6.1.
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
            "sasl.mechanism.inter.broker.protocol": _MECHANISM,
            f"listener.name.{PROTOCOL.lower()}.{_MECHANISM.lower()}.sasl.jaas.config": login,
            "bootstrap.users.file": str(self.folder / "users"),
            "http.bearer.token.file": str(self.folder / "http.token"),
        }
        # Strings of TOML and of JSON have the same form.
        return "".join(
            f"{json.dumps(name)} = {json.dumps(each)}\n" for name, each in settings.items()
        )

    def _write_profile(self, servers: str, password: str) -> None:
        properties = {
            "security.protocol": PROTOCOL,
            "sasl.mechanism": _MECHANISM,
            "sasl.username": ADMIN,
            "sasl.password": password,
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }
        Profiles({ADMIN: Profile(servers, None, properties)}, ADMIN).save(self.profile_file)

    def instructions(self) -> str:
        """Return how to use the cluster."""
        return (
            f"The user {ADMIN} may do everything; its password is in {self.folder / 'users'}.\n"
            f"For the command line:\n\n  export {FILE_VARIABLE}={self.profile_file}\n"
            "  millstream cluster status\n\n"
            f"Clients trust {self.folder / 'ca.pem'} and log in by {_MECHANISM}."
        )
