from __future__ import annotations

import pytest

from millstream.security.pem import der_of, parse_pem

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAEC\nAwQF\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN EC PRIVATE KEY-----\nAAEC\n-----END EC PRIVATE KEY-----\n"
CRL = "-----BEGIN X509 CRL-----\nAAEC\n-----END X509 CRL-----\n"
LOCKED = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAEC\n"
    "-----END RSA PRIVATE KEY-----\n"
)


def test_objects_of_all_kinds() -> None:
    found = parse_pem(f"Bag Attributes\n{KEY}text\n{CERTIFICATE}{CRL}{CERTIFICATE}")
    assert found == ((KEY,), (CERTIFICATE, CERTIFICATE), (CRL,))


def test_line_ends_may_be_spaces() -> None:
    one_line = CERTIFICATE.replace("\n", " ")
    windows = CERTIFICATE.replace("\n", "\r\n")
    assert parse_pem(one_line).certificates == parse_pem(windows).certificates == (CERTIFICATE,)


def test_headers_of_an_encrypted_key_stay() -> None:
    assert parse_pem(LOCKED).keys == (LOCKED,)


def test_other_objects_are_left_out() -> None:
    assert parse_pem("-----BEGIN DH PARAMETERS-----\nAA\n-----END DH PARAMETERS-----") == (
        (),
        (),
        (),
    )


def test_bytes() -> None:
    assert der_of(CERTIFICATE) == bytes(range(6))
    for text in ("", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"):
        with pytest.raises(ValueError, match="not a PEM object"):
            der_of(text)
