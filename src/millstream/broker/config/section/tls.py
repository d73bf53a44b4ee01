"""Settings for TLS: keys, trusted certificates, versions, and the names of clients."""

from __future__ import annotations

import dataclasses

from millstream.model.definition import ConfigScope, ConfigType, setting
from millstream.security.principal_mapping import DEFAULT_RULES, check_rules
from millstream.security.tls_material import (
    TLS_1_3,
    TLS_VERSIONS,
    ClientAuth,
    convert_hint,
)

_STRING, _INT, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LIST
_LONG, _PASSWORD = ConfigType.LONG, ConfigType.PASSWORD
_PER_BROKER = ConfigScope.PER_BROKER
_PEM = "PEM"
_CLIENT_AUTH = tuple(ClientAuth)


def _check_type(value: str) -> None:
    if value != _PEM:
        raise ValueError(f"PEM. {convert_hint()}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TlsSection:
    """TLS of listeners, and of connections between brokers. `config.tls`.

    Every setting that begins with `ssl.` may be set for one listener."""

    ssl_keystore_type: str = setting(
        _STRING,
        _PEM,
        "Format of the key store: PEM.",
        check=_check_type,
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_keystore_location: str | None = setting(
        _STRING,
        None,
        "PEM file with the private key and the certificate chain of the listener. The broker uses a"
        " replaced file for new connections within seconds.",
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_keystore_certificate_chain: str | None = setting(
        _PASSWORD,
        None,
        "Certificate chain of the listener as PEM text, instead of a file.",
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_keystore_key: str | None = setting(
        _PASSWORD,
        None,
        "Private key of the listener as PEM text, instead of a file.",
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_key_password: str | None = setting(
        _PASSWORD,
        None,
        "Password of the private key, if it is encrypted.",
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_truststore_type: str = setting(
        _STRING,
        _PEM,
        "Format of the trust store: PEM.",
        check=_check_type,
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_truststore_location: str | None = setting(
        _STRING,
        None,
        "PEM file with the authorities that sign certificates of clients and brokers. If it also"
        " holds revocation lists (X509 CRL), revoked certificates are rejected; every authority"
        " that signs certificates of clients then needs a list that has not expired.",
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_truststore_certificates: str | None = setting(
        _PASSWORD,
        None,
        "Authorities and revocation lists as PEM text, instead of a file.",
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_client_auth: str = setting(
        _STRING,
        ClientAuth.NONE.value,
        "Whether clients present a certificate. With requested a client may come without one and is"
        " User:ANONYMOUS. For a listener with SASL, only the listener's own value counts, as in"
        " Kafka.",
        choices=_CLIENT_AUTH,
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        _LIST,
        TLS_VERSIONS,
        "Versions of TLS that are accepted.",
        choices=TLS_VERSIONS,
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_protocol: str = setting(
        _STRING,
        TLS_1_3,
        "Highest version of TLS, whichever versions ssl.enabled.protocols has.",
        choices=TLS_VERSIONS,
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        _LIST,
        (),
        "Cipher suites that are accepted, by their names in Java or OpenSSL; empty for OpenSSL's"
        " choice. A version of TLS with no suite in the list is off. The suites of TLS 1.3 are all"
        " on, or all off.",
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_principal_mapping_rules: str = setting(
        _STRING,
        DEFAULT_RULES,
        "Rules that turn the distinguished name of a client's certificate into the name of a user:"
        " DEFAULT, or RULE:pattern/replacement/ with L or U for lower or upper case.",
        check=check_rules,
        is_per_listener=True,
    )
    ssl_endpoint_identification_algorithm: str = setting(
        _STRING,
        "https",
        "How a connection to another broker verifies the host name in its certificate: https, or"
        " empty to verify no host name.",
        choices=("https", ""),
        scope=_PER_BROKER,
        is_per_listener=True,
    )
    ssl_handshake_timeout_ms: int = setting(
        _INT, 10_000, "Time that a TLS handshake may take.", minimum=1
    )
    ssl_handshakes_max: int = setting(
        _INT,
        1_000,
        "Number of TLS handshakes in progress; above it the oldest one is closed.",
        minimum=1,
    )
