"""Makes OpenSSL contexts from keys and certificates.

OpenSSL's binding loads keys and revocation lists from files only. Here they are in memory, because
the value of a setting may hold them. So they pass through an anonymous file in memory. Where the
system has none, they pass through a temporary file that only this user can read.

Sessions are not resumed by tickets: every TLS 1.3 connection verifies the client's certificate, by
the trusted certificates and revocation lists in force. Renegotiation is off.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millstream.security.tls_material import (
    TLS_1_2,
    TLS_1_3,
    TLS_VERSIONS,
    ClientAuth,
    TlsError,
    TlsMaterial,
    TlsOptions,
)

_VERSIONS: Final = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
#: Suites of TLS 1.3 name no key exchange. OpenSSL's binding cannot choose among them.
_TLS_1_3_SUITES: Final = frozenset(
    {
        "TLS_AES_256_GCM_SHA384",
        "TLS_AES_128_GCM_SHA256",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_CCM_8_SHA256",
    }
)
_OPTIONS: Final = (
    ssl.OP_NO_TICKET
    | ssl.OP_NO_RENEGOTIATION
    | ssl.OP_NO_COMPRESSION
    | ssl.OP_CIPHER_SERVER_PREFERENCE
)


def server_context(options: TlsOptions, material: TlsMaterial) -> ssl.SSLContext:
    """Return the context of a listener. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _configure(context, options)
    if material.key is None:
        raise TlsError(
            f"a TLS listener needs a key: set {options.prefix}keystore.location to a PEM file with"
            " the private key and the certificate chain"
        )
    _load_key(context, options, material)
    if options.client_auth is not ClientAuth.NONE:
        if not material.trusted:
            raise TlsError(
                f"{options.prefix}client.auth = {options.client_auth} needs the authorities of the"
                f" clients: set {options.prefix}truststore.location to a PEM file"
            )
        _load_trust(context, options, material)
        context.verify_mode = _VERIFY_MODES[options.client_auth]
    return context


def client_context(options: TlsOptions, material: TlsMaterial) -> ssl.SSLContext:
    """Return the context of connections to the listeners of other brokers. Without a trust store,
    the system's certificates are trusted. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.verifies_host
    _configure(context, options)
    if material.key is not None:
        _load_key(context, options, material)
    if material.trusted:
        _load_trust(context, options, material)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _configure(context: ssl.SSLContext, options: TlsOptions) -> None:
    context.options |= _OPTIONS
    # As in Java, a certificate in the trust store is trusted even if it is not an authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    versions = [
        version
        for version in TLS_VERSIONS
        if version in options.versions and version <= options.version_max
    ]
    if options.cipher_suites:
        versions = [v for v in versions if _has_suite(v, options.cipher_suites)]
        old = [suite for suite in options.cipher_suites if suite not in _TLS_1_3_SUITES]
        if old:
            _set_ciphers(context, options, old)
    if not versions:
        raise TlsError(
            f"{options.prefix}enabled.protocols, {options.prefix}protocol and"
            f" {options.prefix}cipher.suites leave no version of TLS"
        )
    context.minimum_version = _VERSIONS[versions[0]]
    context.maximum_version = _VERSIONS[versions[-1]]


def _has_suite(version: str, suites: tuple[str, ...]) -> bool:
    """Whether a version has one of the suites. TLS 1.3 and TLS 1.2 have none in common."""
    return any((suite in _TLS_1_3_SUITES) == (version == TLS_1_3) for suite in suites)


def _set_ciphers(context: ssl.SSLContext, options: TlsOptions, suites: list[str]) -> None:
    for suite in suites:
        try:
            context.set_ciphers(openssl_name(suite))
        except ssl.SSLError:
            raise TlsError(
                f"{options.prefix}cipher.suites: OpenSSL has no cipher suite {suite!r}"
            ) from None
    context.set_ciphers(":".join(map(openssl_name, suites)))


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 cipher suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is
    ECDHE-RSA-AES128-GCM-SHA256. A name of OpenSSL stays as it is."""
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return suite
    cipher = re.sub(r"(AES|CAMELLIA)_(\d+)", r"\1\2", cipher).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    parts = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return parts.replace("_", "-")


def _load_key(context: ssl.SSLContext, options: TlsOptions, material: TlsMaterial) -> None:
    password = options.key_password

    def ask() -> str:
        # Without this OpenSSL would ask on the terminal.
        if password is None:
            raise TlsError(
                f"the private key is encrypted: set {options.prefix}key.password to its password"
            )
        return password

    text = (material.key or "") + "".join(material.chain)
    try:
        with _as_file(text) as path:
            context.load_cert_chain(path, password=ask)
    except ssl.SSLError as error:
        raise TlsError(_key_problem(options, material, error)) from error


def _key_problem(options: TlsOptions, material: TlsMaterial, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"the private key in {options.prefix}keystore does not belong to the first certificate"
        )
    if "ENCRYPTED" in (material.key or ""):
        return f"{options.prefix}key.password is not the password of the private key"
    return f"OpenSSL rejects the key or certificate of {options.prefix}keystore: {error}"


def _load_trust(context: ssl.SSLContext, options: TlsOptions, material: TlsMaterial) -> None:
    text = "".join((*material.trusted, *material.revocations))
    try:
        with _as_file(text) as path:
            context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise TlsError(
            f"OpenSSL rejects a certificate of {options.prefix}truststore: {error}"
        ) from error
    if material.revocations:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a file with this text, which exists only inside the block."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("millstream-tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as temporary:
            temporary.write(text)
            temporary.flush()
            yield temporary.name
