"""The local authority: its files, and certificates that OpenSSL verifies."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from millstream.security.certificate import parse_certificate
from millstream.security.local_authority import LocalAuthority
from millstream.security.pem import der_of


def verify(folder: Path, name: str, *options: str) -> str:
    command = ["openssl", "verify", "-x509_strict", "-CAfile", str(folder / "ca.pem"), *options]
    done = subprocess.run([*command, str(folder / name)], capture_output=True, text=True)
    return done.stdout + done.stderr


def test_certificates_are_valid(tmp_path: Path) -> None:
    authority = LocalAuthority.open_or_create(tmp_path)
    authority.issue("broker", hosts=["localhost", "127.0.0.1", "::1"], days=2)
    authority.issue("alice", days=2)
    assert "OK" in verify(tmp_path, "broker.crt", "-purpose", "sslserver")
    assert "OK" in verify(tmp_path, "broker.crt", "-purpose", "sslclient")
    assert "OK" in verify(tmp_path, "broker.crt", "-verify_ip", "127.0.0.1")
    assert "OK" in verify(tmp_path, "alice.crt", "-purpose", "sslclient")
    assert "OK" not in verify(tmp_path, "alice.crt", "-purpose", "sslserver")
    subject = parse_certificate(der_of((tmp_path / "alice.crt").read_text())).subject
    assert subject == "CN=alice,O=Millstream"


def test_private_keys_are_private(tmp_path: Path) -> None:
    LocalAuthority.open_or_create(tmp_path).issue("alice", days=2)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        "ca.key",
        "alice.key",
        "alice.pem",
    }


def test_the_authority_is_reused(tmp_path: Path) -> None:
    first = LocalAuthority.open_or_create(tmp_path)
    content = (tmp_path / "ca.pem").read_bytes()
    second = LocalAuthority.open_or_create(tmp_path)
    assert (first.is_new, second.is_new) == (True, False)
    assert (tmp_path / "ca.pem").read_bytes() == content


def test_another_kind_of_key(tmp_path: Path) -> None:
    LocalAuthority.open_or_create(tmp_path)
    key = tmp_path / "ca.key"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ED25519", "-out", str(key)],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ValueError, match="is not a key that"):
        LocalAuthority.open_or_create(tmp_path)


def test_a_revocation_list(tmp_path: Path) -> None:
    authority = LocalAuthority.open_or_create(tmp_path)
    certificate = authority.issue("bob", days=1)
    authority.issue("alice", days=1)
    file = str(authority.revoke(certificate.serial_number))
    assert "revoked" in verify(tmp_path, "bob.crt", "-crl_check", "-CRLfile", file)
    assert "OK" in verify(tmp_path, "alice.crt", "-crl_check", "-CRLfile", file)
