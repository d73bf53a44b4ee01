"""Keys and certificates from files and settings, and the sentences about bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.process.tls_process import TlsHome
from millstream.env.disk import SystemDisk
from millstream.security.tls_material import TlsError, TlsMaterial, TlsOptions, read_material


def read(**options: Any) -> TlsMaterial:
    return read_material(TlsOptions(**options), SystemDisk())


def test_files_and_texts_are_the_same(tmp_path: Path) -> None:
    TlsHome(tmp_path)
    by_file = read(
        keystore_location=str(tmp_path / "broker.pem"),
        truststore_location=str(tmp_path / "ca.pem"),
    )
    by_text = read(
        key=(tmp_path / "broker.key").read_text(),
        certificate_chain=(tmp_path / "broker.crt").read_text(),
        truststore_certificates=(tmp_path / "ca.pem").read_text(),
    )
    assert by_file == by_text
    assert "PRIVATE" not in repr(by_file)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keystore_location": "missing"}, "cannot be read: No such file"),
        ({"keystore_location": "broker.crt"}, "has no private key in PEM"),
        ({"keystore_location": "broker.key"}, "has no certificate: append it"),
        ({"keystore_location": "store.p12"}, "openssl pkcs12 -in .*store.p12 -nodes"),
        ({"key": "x"}, "ssl.keystore.key and ssl.keystore.certificate.chain belong together"),
        ({"key": "x", "certificate_chain": "x"}, "ssl.keystore.key has no private key"),
        ({"truststore_location": "broker.key"}, "truststore.location = .* has no certificate"),
        ({"truststore_certificates": ""}, "ssl.truststore.certificates has no certificate"),
    ],
)
def test_problems(options: dict[str, str], problem: str, tmp_path: Path) -> None:
    TlsHome(tmp_path)
    (tmp_path / "store.p12").write_bytes(b"\x30\x82\xff\xfe")
    placed = {
        name: str(tmp_path / value) if name.endswith("location") else value
        for name, value in options.items()
    }
    with pytest.raises(TlsError, match=problem):
        read(**placed)
