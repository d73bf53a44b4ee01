"""What options say of connections, as the Java client and librdkafka name it. Pure.

`connection_settings` takes what it knows out of the `kafka.*` options and returns the rest, for
the source or the sink to look at. Where the two clients differ in a name, both are understood.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millstream.protocol.error import OptionError

PREFIX: Final = "kafka."
_PORT_DEFAULT: Final = 9092
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_JAAS_FIELD: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """How a connection is encrypted. Paths are of PEM files; None means the system's."""

    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    is_host_checked: bool = True


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are, for SASL."""

    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Everything a `Cluster` is built from. Can be pickled, and goes to executors."""

    bootstrap: tuple[Address, ...]
    client_id: str = "millstream-spark"
    rack: str = ""
    #: Without a byte for so long, a connection is taken for dead.
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    #: How long anything is tried again before it fails.
    deadline_ms: int = 60_000
    backoff_ms: int = 50
    backoff_ms_max: int = 1_000
    tls: Tls | None = None
    login: Login | None = None


def connection_settings(
    options: Mapping[str, str],
) -> tuple[ConnectionSettings, dict[str, str]]:
    """The settings in `options`, whose names are in lower case, and the `kafka.*` ones that are
    left, without their prefix. Raises OptionError."""
    left = {
        name[len(PREFIX) :]: value for name, value in options.items() if name.startswith(PREFIX)
    }
    default = ConnectionSettings(())
    protocol = take_choice(left, "PLAINTEXT", _PROTOCOLS, "security.protocol")
    tls = _tls(left)
    settings = ConnectionSettings(
        bootstrap=_addresses(left.pop("bootstrap.servers", None)),
        client_id=left.pop("client.id", default.client_id),
        rack=left.pop("client.rack", default.rack),
        request_timeout_ms=take_number(left, default.request_timeout_ms, 1, "request.timeout.ms"),
        connect_timeout_ms=take_number(
            left, default.connect_timeout_ms, 1, "socket.connection.setup.timeout.ms"
        ),
        deadline_ms=take_number(left, default.deadline_ms, 1, "default.api.timeout.ms"),
        backoff_ms=take_number(left, default.backoff_ms, 1, "retry.backoff.ms"),
        backoff_ms_max=take_number(left, default.backoff_ms_max, 1, "retry.backoff.max.ms"),
        tls=tls if protocol.endswith("SSL") else None,
        login=_login(left, protocol.startswith("SASL")),
    )
    return settings, left


def take_number(left: dict[str, str], default: int, least: int, name: str) -> int:
    """Take the whole number `kafka.<name>` out of `left`."""
    text = left.pop(name, None)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"{PREFIX}{name} must be a whole number from {least} on, not {text!r}")
    return number


def take_choice(left: dict[str, str], default: str, choices: tuple[str, ...], name: str) -> str:
    """Take `kafka.<name>`, one of `choices` in whatever case, out of `left`."""
    text = left.pop(name, default)
    for choice in choices:
        if choice.lower() == text.lower():
            return choice
    raise OptionError(f"{PREFIX}{name} must be one of {', '.join(choices)}, not {text!r}")


def _addresses(text: str | None) -> tuple[Address, ...]:
    name = PREFIX + "bootstrap.servers"
    if text is None or not text.strip():
        raise OptionError(f"{name} must be given: host:port, or several with commas between them")
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon:
            host, port = part, str(_PORT_DEFAULT)
        host = host.rpartition("://")[2].strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise OptionError(f"{name} has {part!r}, which is not host:port")
        found.append(Address(host, int(port)))
    return tuple(found)


def _tls(left: dict[str, str]) -> Tls:
    for store in ("truststore", "keystore"):
        kind = left.pop(f"ssl.{store}.type", "JKS").upper()
        if kind != "PEM" and f"ssl.{store}.location" in left:
            raise OptionError(
                f"{PREFIX}ssl.{store}.type must be PEM, not {kind}: convert the store with"
                " keytool and openssl, or name the files by kafka.ssl.ca.location,"
                " kafka.ssl.certificate.location and kafka.ssl.key.location"
            )
    left.pop("ssl.truststore.password", None)
    keystore = left.pop("ssl.keystore.location", None)
    password = left.pop("ssl.keystore.password", None)
    algorithm = left.pop("ssl.endpoint.identification.algorithm", "https")
    return Tls(
        ca_path=left.pop("ssl.ca.location", left.pop("ssl.truststore.location", None)),
        certificate_path=left.pop("ssl.certificate.location", keystore),
        key_path=left.pop("ssl.key.location", keystore),
        key_password=left.pop("ssl.key.password", password),
        is_host_checked=algorithm.lower() == "https",
    )


def _login(left: dict[str, str], is_needed: bool) -> Login | None:
    jaas = dict(_JAAS_FIELD.findall(left.pop("sasl.jaas.config", "")))
    mechanism = left.pop("sasl.mechanism", left.pop("sasl.mechanisms", None))
    user = left.pop("sasl.username", jaas.get("username"))
    password = left.pop("sasl.password", jaas.get("password"))
    if not is_needed:
        return None
    if mechanism is None or mechanism.upper() not in _MECHANISMS:
        raise OptionError(
            f"{PREFIX}sasl.mechanism must be one of {', '.join(_MECHANISMS)}, not {mechanism!r}"
        )
    if user is None or password is None:
        raise OptionError(
            f"{PREFIX}sasl.username and {PREFIX}sasl.password, or {PREFIX}sasl.jaas.config with"
            " both, must be given"
        )
    return Login(mechanism.upper(), user, password)
