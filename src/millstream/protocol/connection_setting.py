"""The settings of connections, parsed from client properties. Pure.

Property names are those of the Java client and of librdkafka. Where the two differ in a name, both
names work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millstream.model.bootstrap import PORT_DEFAULT
from millstream.model.jaas import parse_jaas
from millstream.protocol.client_property import ClientProperties
from millstream.protocol.error import SettingError

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER: Final = "OAUTHBEARER"
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)


class Address(NamedTuple):
    """The host and port of a broker's listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """The encryption of a connection. Paths name PEM files; None means the system's."""

    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    is_host_checked: bool = True


@dataclass(frozen=True, slots=True)
class Login:
    """A user name and a password for SASL."""

    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthLogin:
    """The credentials with which a client gets its tokens (OAuth's client credentials grant)."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    #: Sent to the broker with each token.
    extensions: tuple[tuple[str, str], ...] = ()
    #: A PEM file with the authorities of the token endpoint; None means the system's.
    ca_path: str | None = None

    @property
    def mechanism(self) -> str:
        return OAUTHBEARER


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings of a `ClusterClient`. Picklable, because Spark sends them to executors."""

    bootstrap: tuple[Address, ...]
    client_id: str = "millstream"
    rack: str = ""
    #: A connection that receives no byte for this long is closed.
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    #: An operation is retried for this long before it fails.
    deadline_ms: int = 60_000
    backoff_ms: int = 50
    backoff_ms_max: int = 1_000
    tls: Tls | None = None
    login: Login | OAuthLogin | None = None


def connection_settings(
    properties: ClientProperties, client_id: str = "millstream"
) -> ConnectionSettings:
    """Pop the properties of connections and return their settings. Raises SettingError."""
    default = ConnectionSettings(())
    protocol = properties.pop_choice("security.protocol", "PLAINTEXT", _PROTOCOLS)
    tls = _tls(properties)
    return ConnectionSettings(
        bootstrap=_addresses(properties),
        client_id=properties.pop_text("client.id", client_id),
        rack=properties.pop_text("client.rack", default.rack),
        request_timeout_ms=properties.pop_number(
            "request.timeout.ms", default.request_timeout_ms, 1
        ),
        connect_timeout_ms=properties.pop_number(
            "socket.connection.setup.timeout.ms", default.connect_timeout_ms, 1
        ),
        deadline_ms=properties.pop_number("default.api.timeout.ms", default.deadline_ms, 1),
        backoff_ms=properties.pop_number("retry.backoff.ms", default.backoff_ms, 1),
        backoff_ms_max=properties.pop_number("retry.backoff.max.ms", default.backoff_ms_max, 1),
        tls=tls if protocol.endswith("SSL") else None,
        login=_login(properties, protocol.startswith("SASL")),
    )


def _addresses(properties: ClientProperties) -> tuple[Address, ...]:
    text = properties.pop("bootstrap.servers")
    name = properties.prefix + "bootstrap.servers"
    if text is None or not text.strip():
        raise SettingError(f"{name} must be given: host:port, or several with commas between them")
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon:
            host, port = part, str(PORT_DEFAULT)
        host = host.rpartition("://")[2].strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise SettingError(f"{name} has {part!r}, which is not host:port")
        found.append(Address(host, int(port)))
    return tuple(found)


def _tls(properties: ClientProperties) -> Tls:
    for store in ("truststore", "keystore"):
        kind = properties.pop_text(f"ssl.{store}.type", "JKS").upper()
        if kind != "PEM" and f"ssl.{store}.location" in properties.remaining:
            prefix = properties.prefix
            raise SettingError(
                f"{prefix}ssl.{store}.type must be PEM, not {kind}: convert the store with"
                f" keytool and openssl, or name the files by {prefix}ssl.ca.location,"
                f" {prefix}ssl.certificate.location and {prefix}ssl.key.location"
            )
    properties.pop("ssl.truststore.password")
    truststore = properties.pop("ssl.truststore.location")
    keystore = properties.pop("ssl.keystore.location")
    password = properties.pop("ssl.keystore.password")
    algorithm = properties.pop_text("ssl.endpoint.identification.algorithm", "https")
    return Tls(
        ca_path=properties.pop("ssl.ca.location", truststore),
        certificate_path=properties.pop("ssl.certificate.location", keystore),
        key_path=properties.pop("ssl.key.location", keystore),
        key_password=properties.pop("ssl.key.password", password),
        is_host_checked=algorithm.lower() == "https",
    )


def _login(properties: ClientProperties, is_needed: bool) -> Login | OAuthLogin | None:
    jaas = _jaas(properties, is_needed)
    mechanisms = properties.pop("sasl.mechanisms")
    mechanism = properties.pop("sasl.mechanism", mechanisms)
    user = properties.pop("sasl.username", jaas.get("username"))
    password = properties.pop("sasl.password", jaas.get("password"))
    token = _TokenProperties.pop(properties, jaas)
    if not is_needed:
        return None
    prefix = properties.prefix
    if mechanism is None or mechanism.upper() not in _MECHANISMS:
        raise SettingError(
            f"{prefix}sasl.mechanism must be one of {', '.join(_MECHANISMS)}, not {mechanism!r}"
        )
    if mechanism.upper() == OAUTHBEARER:
        return token.login(prefix)
    if user is None or password is None:
        raise SettingError(
            f"{prefix}sasl.username and {prefix}sasl.password, or {prefix}sasl.jaas.config with"
            " both, must be given"
        )
    return Login(mechanism.upper(), user, password)


def _jaas(properties: ClientProperties, is_needed: bool) -> dict[str, str]:
    text = properties.pop_text("sasl.jaas.config", "")
    if not text.strip() or not is_needed:
        return {}
    try:
        return parse_jaas(text)
    except ValueError as error:
        # Neither this error nor its cause quotes the text, which has a password.
        raise SettingError(f"{properties.prefix}sasl.jaas.config must be {error}") from None


class _TokenProperties(NamedTuple):
    """The properties of OAUTHBEARER, by librdkafka's names or in Java's JAAS text."""

    url: str | None
    client_id: str | None
    client_secret: str | None
    scope: str
    extensions: str
    ca_path: str | None

    @classmethod
    def pop(cls, properties: ClientProperties, jaas: dict[str, str]) -> _TokenProperties:
        name = "sasl.oauthbearer."
        # The other method of librdkafka takes tokens from a callback, which options cannot hold.
        properties.pop_choice(f"{name}method", "oidc", ("oidc",))
        return cls(
            url=properties.pop(f"{name}token.endpoint.url"),
            client_id=properties.pop(f"{name}client.id", jaas.get("clientId")),
            client_secret=properties.pop(f"{name}client.secret", jaas.get("clientSecret")),
            scope=properties.pop_text(f"{name}scope", jaas.get("scope", "")),
            extensions=properties.pop_text(f"{name}extensions", ""),
            ca_path=properties.pop("https.ca.location"),
        )

    def login(self, prefix: str) -> OAuthLogin:
        name = f"{prefix}sasl.oauthbearer."
        if not self.url or self.client_id is None or self.client_secret is None:
            raise SettingError(
                f"{name}token.endpoint.url, {name}client.id and {name}client.secret must be given"
                " for OAUTHBEARER"
            )
        # Another scheme would let an option read a file of this host.
        if not self.url.startswith(("https://", "http://")):
            raise SettingError(f"{name}token.endpoint.url must start with https:// or http://")
        pairs = [part.partition("=") for part in self.extensions.split(",") if part.strip()]
        return OAuthLogin(
            token_url=self.url,
            client_id=self.client_id,
            client_secret=self.client_secret,
            scope=self.scope,
            extensions=tuple((key.strip(), value.strip()) for key, _, value in pairs),
            ca_path=self.ca_path,
        )
