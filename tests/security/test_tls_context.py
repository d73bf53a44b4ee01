"""Contexts that OpenSSL accepts, and the sentences about what it rejects."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from harness.process.tls_process import TlsHome
from millstream.env.disk import SystemDisk
from millstream.security.tls_context import client_context, openssl_name, server_context
from millstream.security.tls_material import ClientAuth, TlsError, TlsOptions, read_material


@pytest.fixture
def home(tmp_path: Path) -> TlsHome:
    return TlsHome(tmp_path)


def server(home: TlsHome, **more: Any) -> ssl.SSLContext:
    options = TlsOptions(
        **{"keystore_location": str(home.folder / "broker.pem"), "truststore_location": home.ca}
        | more
    )
    return server_context(options, read_material(options, SystemDisk()))


def test_sessions_are_not_resumed(home: TlsHome) -> None:
    context = server(home)
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("auth", list(ClientAuth))
def test_client_auth(home: TlsHome, auth: ClientAuth) -> None:
    modes = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    assert server(home, client_auth=auth).verify_mode is modes[auth]


def test_client_auth_needs_authorities(home: TlsHome) -> None:
    with pytest.raises(TlsError, match=r"set ssl.truststore.location to a PEM file"):
        server(home, client_auth=ClientAuth.REQUIRED, truststore_location=None)


def test_a_listener_needs_a_key(home: TlsHome) -> None:
    with pytest.raises(TlsError, match=r"set ssl.keystore.location to a PEM file"):
        server(home, keystore_location=None)


def test_a_key_of_another_certificate(home: TlsHome) -> None:
    key, chain = (home.folder / "broker.key").read_text(), (home.folder / "ca.pem").read_text()
    with pytest.raises(TlsError, match="does not belong to the first certificate"):
        server(home, key=key, certificate_chain=chain)


def test_an_encrypted_key(home: TlsHome) -> None:
    key = load_pem_private_key((home.folder / "broker.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pw"))
    file = home.folder / "locked.pem"
    file.write_bytes(locked + (home.folder / "broker.crt").read_bytes())
    server(home, keystore_location=str(file), key_password="pw")
    with pytest.raises(TlsError, match=r"ssl.key.password is not the password"):
        server(home, keystore_location=str(file), key_password="other")
    with pytest.raises(TlsError, match=r"set ssl.key.password to its password"):
        server(home, keystore_location=str(file))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("TLSv1_2", "TLSv1_3")),
        ({"versions": ("TLSv1.3",)}, ("TLSv1_3", "TLSv1_3")),
        ({"version_max": "TLSv1.2"}, ("TLSv1_2", "TLSv1_2")),
        ({"cipher_suites": ("TLS_AES_256_GCM_SHA384",)}, ("TLSv1_3", "TLSv1_3")),
        ({"cipher_suites": ("ECDHE-ECDSA-AES256-GCM-SHA384",)}, ("TLSv1_2", "TLSv1_2")),
        (
            {"cipher_suites": ("TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_GCM_SHA256")},
            ("TLSv1_2", "TLSv1_3"),
        ),
    ],
)
def test_versions(home: TlsHome, options: dict[str, Any], expected: tuple[str, str]) -> None:
    context = server(home, **options)
    assert (context.minimum_version.name, context.maximum_version.name) == expected


def test_no_version_is_left(home: TlsHome) -> None:
    with pytest.raises(TlsError, match="leave no version of TLS"):
        server(home, versions=("TLSv1.3",), version_max="TLSv1.2")


def test_an_unknown_cipher_suite(home: TlsHome) -> None:
    with pytest.raises(TlsError, match="no cipher suite 'TLS_NONE_WITH_NONE'"):
        server(home, cipher_suites=("TLS_NONE_WITH_NONE",))


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_names_of_cipher_suites(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(openssl)


def test_revocation_lists_are_checked_if_there_are_any(home: TlsHome) -> None:
    certificate = home.authority.issue("bob", days=1)
    file = home.folder / "trust.pem"
    file.write_text(
        Path(home.ca).read_text() + home.authority.revoke(certificate.serial_number).read_text()
    )
    auth = {"client_auth": ClientAuth.REQUIRED}
    with_list = server(home, truststore_location=str(file), **auth)
    assert with_list.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF
    assert not server(home, **auth).verify_flags & ssl.VERIFY_CRL_CHECK_LEAF


def test_a_client_without_authorities_trusts_those_of_the_system() -> None:
    options = TlsOptions(verifies_host=False)
    context = client_context(options, read_material(options, SystemDisk()))
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.check_hostname
