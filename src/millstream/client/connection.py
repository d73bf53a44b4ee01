"""How a client connects: client id, TLS, SASL and raw properties, for all kinds of clients.

The keywords have aiokafka's and kafka-python's names. This module maps them to librdkafka's
properties, checks that they fit together, and reads no files: it only checks that they exist.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, TypedDict

from millstream.client.error import UsageError
from millstream.client.old_name import reject_unknown
from millstream.model.bootstrap import SERVERS_DEFAULT, SERVERS_VARIABLE

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism: TypeAlias = Literal[
    "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"
]

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
#: Mechanisms with a user name and a password.
_WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: librdkafka's property of each keyword.
PROPERTIES: Final[Mapping[str, str]] = {
    "client_id": "client.id",
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
_CHECKS_NAMES: Final = "ssl.endpoint.identification.algorithm"
#: Once all brokers that librdkafka knows are down, it bootstraps anew by default. A consumer can
#: then wait forever for its group's coordinator, and a client of one broker can lose that broker.
#: Without the new bootstrap it reconnects to the brokers that it knows.
RECOVERY: Final[Mapping[str, str]] = {"metadata.recovery.strategy": "none"}


class ConnectionOptions(TypedDict, total=False):
    """The keywords that all clients have; see `ConnectionSettings`."""

    client_id: str | None
    security_protocol: SecurityProtocol | None
    sasl_mechanism: SaslMechanism | None
    sasl_username: str | None
    sasl_password: str | None
    ssl_cafile: str | Path | None
    ssl_certfile: str | Path | None
    ssl_keyfile: str | Path | None
    ssl_password: str | None
    ssl_check_hostname: bool
    config: Mapping[str, Any]


class Checked:
    """Base of settings: `of` rejects an unknown option and names the nearest known one."""

    #: Arguments of the client that are no settings.
    arguments: ClassVar[tuple[str, ...]] = ("bootstrap_servers",)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the settings with these options."""
        names = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]
        reject_unknown(options, (*names, *cls.arguments))
        return cls(**options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings(Checked):
    """The settings that all clients have."""

    #: The name of this client in the brokers' logs, quotas and metrics.
    client_id: str | None = None
    security_protocol: SecurityProtocol | None = None
    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    #: A file with the certificates of the authorities that the client trusts; the system's if None.
    ssl_cafile: str | Path | None = None
    #: The client's own certificate and its key, for brokers that ask for one.
    ssl_certfile: str | Path | None = None
    ssl_keyfile: str | Path | None = None
    ssl_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True
    #: Properties of librdkafka, by its names. They override the options. They may be secrets.
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.config, Mapping):
            raise UsageError(
                f"config={self.config!r}: pass a dict of librdkafka's properties, for example "
                "{'socket.keepalive.enable': True}."
            )
        _check_security(self)

    def connection_properties(self, servers: str | Sequence[str] | None) -> dict[str, Any]:
        """Return librdkafka's properties for the connection, without `config`."""
        found: dict[str, Any] = {"bootstrap.servers": servers_of(servers), **RECOVERY}
        for name, property_name in PROPERTIES.items():
            given = getattr(self, name)
            if given is not None:
                found[property_name] = str(given)
        if not self.ssl_check_hostname:
            found[_CHECKS_NAMES] = "none"
        return found

    def connection_options(self) -> dict[str, Any]:
        """Return these settings as keywords of another client, without defaults."""
        return {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(ConnectionSettings)
            if getattr(self, each.name) != _default_of(each)
        }


def _default_of(each: dataclasses.Field[Any]) -> Any:
    return {} if each.default is dataclasses.MISSING else each.default


def servers_of(servers: str | Sequence[str] | None) -> str:
    """Return the bootstrap servers: as given, from the environment, or the default."""
    if servers is not None and not isinstance(servers, str):
        servers = _joined(servers)
    return servers or os.environ.get(SERVERS_VARIABLE) or SERVERS_DEFAULT


def _joined(servers: Sequence[str]) -> str:
    if isinstance(servers, list | tuple) and all(isinstance(each, str) for each in servers):
        return ",".join(servers)
    raise UsageError(
        f"bootstrap_servers={servers!r}: pass 'host:port', with commas between several, or a list."
    )


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise if the value is not among the allowed ones."""
    if value not in allowed:
        raise UsageError(f"{name}={value!r} is unknown: use one of {', '.join(allowed)}.")


def _check_security(settings: ConnectionSettings) -> None:
    protocol = settings.config.get("security.protocol", settings.security_protocol)
    protocol = "PLAINTEXT" if protocol is None else str(protocol).upper()
    one_of("security_protocol", protocol, _PROTOCOLS)
    if settings.sasl_mechanism is not None:
        one_of("sasl_mechanism", settings.sasl_mechanism, _MECHANISMS)
    _check_needless(settings, "sasl_", protocol.startswith("SASL"), "SASL_SSL")
    _check_needless(settings, "ssl_", protocol.endswith("SSL"), "SSL' or 'SASL_SSL")
    _check_files(settings)
    if settings.security_protocol is not None and protocol.startswith("SASL"):
        _check_sasl(settings)


def _check_needless(
    settings: ConnectionSettings, prefix: str, is_used: bool, protocol: str
) -> None:
    """Raise for an option that has no effect: the connection would be less secure than expected."""
    if is_used:
        return
    for name in PROPERTIES:
        if name.startswith(prefix) and getattr(settings, name) is not None:
            raise UsageError(
                f"{name}=... has no effect without security_protocol='{protocol}': add it."
            )


def _check_files(settings: ConnectionSettings) -> None:
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        path = getattr(settings, name)
        if path is not None and not Path(path).exists():
            raise UsageError(f"{name}={str(path)!r} does not exist: pass the path of a PEM file.")
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        raise UsageError("A client certificate needs both: pass ssl_certfile and ssl_keyfile.")


def _check_sasl(settings: ConnectionSettings) -> None:
    mechanism = settings.config.get("sasl.mechanism", settings.sasl_mechanism)
    if mechanism is None:
        raise UsageError(
            f"security_protocol={settings.security_protocol!r} needs sasl_mechanism=...: use one "
            f"of {', '.join(_MECHANISMS)}."
        )
    if mechanism not in _WITH_PASSWORD:
        return
    for name in ("sasl_username", "sasl_password"):
        if getattr(settings, name) is None and PROPERTIES[name] not in settings.config:
            raise UsageError(f"sasl_mechanism={mechanism!r} needs {name}=...: add it.")


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries under the client, by name."""
    import confluent_kafka

    return {
        "confluent_kafka": str(confluent_kafka.__version__),
        "librdkafka": confluent_kafka.libversion()[0],
    }
