"""Names are written as Java writes them: the expected texts come from `X500Principal.getName()`."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from harness.tool.java import require_java
from millstream.security.certificate import parse_certificate

START = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)


def certificate(*parts: x509.RelativeDistinguishedName, days: int = 1) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(list(parts))
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + timedelta(days=days))
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )


def part(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName(
        [x509.NameAttribute(kind, value) for kind, value in pairs]
    )


CN, OU, O = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME  # noqa: E741
NAMES = {
    "CN=alice,OU=x,O=y": [part((O, "y")), part((OU, "x")), part((CN, "alice"))],
    "C=DE,ST=BW,L=Ulm,STREET=1 Way,DC=example,UID=u": [
        part((NameOID.USER_ID, "u")),
        part((NameOID.DOMAIN_COMPONENT, "example")),
        part((NameOID.STREET_ADDRESS, "1 Way")),
        part((NameOID.LOCALITY_NAME, "Ulm")),
        part((NameOID.STATE_OR_PROVINCE_NAME, "BW")),
        part((NameOID.COUNTRY_NAME, "DE")),
    ],
    r"CN=\ a\,b\+c\"d\\e\<f\>g\;h\=i\#j\ ": [part((CN, ' a,b+c"d\\e<f>g;h=i#j '))],
    "CN=Zoë 名": [part((CN, "Zoë 名"))],
    "CN=a+OU=b": [part((CN, "a"), (OU, "b"))],
    "1.2.840.113549.1.9.1=#1605614062632e,CN=a": [
        part((CN, "a")),
        x509.RelativeDistinguishedName(
            [x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@bc.", _ASN1Type.IA5String)]
        ),
    ],
}


@pytest.mark.parametrize("expected", NAMES)
def test_names(expected: str) -> None:
    assert parse_certificate(certificate(*NAMES[expected])).subject == expected


def test_validity() -> None:
    found = parse_certificate(certificate(part((CN, "a")), days=365 * 60))
    assert found.not_before == START
    assert found.not_after == START + timedelta(days=365 * 60)


@given(st.binary(max_size=200))
def test_malformed_certificates_are_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match="malformed certificate"):
        parse_certificate(data)


JAVA = """
import java.io.*;
import java.security.cert.*;
import java.nio.charset.StandardCharsets;
public class Names {
    public static void main(String[] files) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String file : files) {
            var made = CertificateFactory.getInstance("X.509");
            var found = (X509Certificate) made.generateCertificate(new FileInputStream(file));
            out.println(found.getSubjectX500Principal().getName());
        }
    }
}
"""


def test_java_writes_the_same_names(tmp_path: Path) -> None:
    require_java()
    (tmp_path / "Names.java").write_text(JAVA)
    files = []
    for number, parts in enumerate(NAMES.values()):
        file = tmp_path / f"{number}.der"
        file.write_bytes(certificate(*parts))
        files.append(str(file))
    done = subprocess.run(
        ["java", str(tmp_path / "Names.java"), *files], capture_output=True, check=True
    )
    names = done.stdout.decode().splitlines()
    assert (
        names
        == [parse_certificate(Path(file).read_bytes()).subject for file in files]
        == list(NAMES)
    )
