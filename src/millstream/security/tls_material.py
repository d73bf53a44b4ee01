"""Keys, certificates and trusted certificates of one TLS endpoint: options, and reading them.

`TlsOptions` are the settings of a listener. `read_material` reads the files that they name, so that
two materials are equal if nothing has changed. `tls_context` makes contexts from a material.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from millstream.env.disk import Disk
from millstream.security.pem import PemObjects, parse_pem

TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"
TLS_VERSIONS: Final = (TLS_1_2, TLS_1_3)


class TlsError(ValueError):
    """Keys or certificates that cannot be used. The message names the setting and what to do."""


class ClientAuth(StrEnum):
    """Whether clients present a certificate; the values are those of `ssl.client.auth`."""

    NONE = "none"
    #: A certificate is verified, but a client may come without one.
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS settings of one endpoint."""

    #: What the settings begin with, for error messages, such as `ssl.`.
    prefix: str = "ssl."
    keystore_location: str | None = None
    certificate_chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_location: str | None = None
    truststore_certificates: str | None = field(default=None, repr=False)
    client_auth: ClientAuth = ClientAuth.NONE
    versions: tuple[str, ...] = TLS_VERSIONS
    version_max: str = TLS_1_3
    #: Names of cipher suites; empty for OpenSSL's own choice.
    cipher_suites: tuple[str, ...] = ()
    #: Whether a connection to another broker verifies the host name in its certificate.
    verifies_host: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """Keys and certificates as PEM text. Never logged."""

    key: str | None = field(repr=False)
    chain: tuple[str, ...]
    trusted: tuple[str, ...]
    revocations: tuple[str, ...]


def read_material(options: TlsOptions, disk: Disk) -> TlsMaterial:
    """Read keys and certificates. Raises TlsError."""
    prefix = options.prefix
    key, chain = None, PemObjects((), (), ())
    if options.key is not None or options.certificate_chain is not None:
        if options.key is None or options.certificate_chain is None:
            raise TlsError(
                f"{prefix}keystore.key and {prefix}keystore.certificate.chain belong together"
            )
        key = _one_key(parse_pem(options.key), f"{prefix}keystore.key")
        chain = parse_pem(options.certificate_chain)
        _check(chain.certificates, f"{prefix}keystore.certificate.chain has no certificate")
    elif options.keystore_location is not None:
        place = f"{prefix}keystore.location = {options.keystore_location!r}"
        chain = parse_pem(_read(options.keystore_location, place, disk))
        key = _one_key(chain, place)
        _check(chain.certificates, f"{place} has no certificate: append it to the private key")
    trust = _read_trust(options, disk)
    return TlsMaterial(
        key=key, chain=chain.certificates, trusted=trust.certificates, revocations=trust.revocations
    )


def _read_trust(options: TlsOptions, disk: Disk) -> PemObjects:
    if options.truststore_certificates is not None:
        trust = parse_pem(options.truststore_certificates)
        place = f"{options.prefix}truststore.certificates"
    elif options.truststore_location is not None:
        place = f"{options.prefix}truststore.location = {options.truststore_location!r}"
        trust = parse_pem(_read(options.truststore_location, place, disk))
    else:
        return PemObjects((), (), ())
    _check(trust.certificates, f"{place} has no certificate")
    return trust


def _read(location: str, place: str, disk: Disk) -> str:
    try:
        return disk.read(Path(location)).decode()
    except OSError as error:
        raise TlsError(f"{place} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise TlsError(f"{place} is not PEM. {convert_hint(location)}") from None


def convert_hint(file: str = "store.p12") -> str:
    """Return how to convert a Java key store to PEM."""
    return (
        f"Convert a PKCS12 file with `openssl pkcs12 -in {file} -nodes -out store.pem`. Convert a"
        " JKS file to PKCS12 first: `keytool -importkeystore -srckeystore store.jks -destkeystore"
        " store.p12 -deststoretype PKCS12`"
    )


def _one_key(objects: PemObjects, place: str) -> str:
    _check(objects.keys, f"{place} has no private key in PEM")
    return objects.keys[0]


def _check(found: tuple[str, ...], problem: str) -> None:
    if not found:
        raise TlsError(problem)
