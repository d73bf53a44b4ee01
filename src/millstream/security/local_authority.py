"""A certificate authority in a folder, for development, tests and small private networks.

Files, in PEM:
    ca.pem, ca.key           the authority's certificate and key
    <name>.pem               a certificate chain and its private key, for a broker or a client
    <name>.crt, <name>.key   the same in two files, for clients that need them apart
    ca.crl                   the certificates that were revoked, once there are any
Files with a private key can be read only by their owner. Keys are ECDSA on the curve P-256.

`cryptography` is imported by the functions that need it: the import takes a tenth of a second.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_NAME: Final = "ca"
AUTHORITY_DAYS: Final = 3650
ORGANIZATION: Final = "Millstream"
#: Clocks of other machines may be behind.
_BEFORE: Final = timedelta(hours=1)


class LocalAuthority:
    """The authority of one folder. `open_or_create` makes it at the first use."""

    __slots__ = ("_certificate", "_key", "folder", "is_new")

    def __init__(
        self,
        folder: Path,
        key: EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        is_new: bool,
    ) -> None:
        self.folder = folder
        self._key = key
        self._certificate = certificate
        #: Whether this call has made the authority.
        self.is_new = is_new

    @classmethod
    def open_or_create(cls, folder: Path, *, replace: bool = False) -> LocalAuthority:
        """Return the authority of the folder; create one if there is none. Raises OSError or
        ValueError."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key_file, file = folder / f"{CA_NAME}.key", folder / f"{CA_NAME}.pem"
        if not replace and key_file.exists() and file.exists():
            key = load_pem_private_key(key_file.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            return cls(folder, _checked(key, key_file), certificate, is_new=False)
        return cls._create(folder)

    @classmethod
    def _create(cls, folder: Path) -> LocalAuthority:
        from cryptography import x509

        folder.mkdir(parents=True, exist_ok=True)
        key = _new_key()
        name = _name("Millstream local authority")
        builder = _builder(name, name, key, days=AUTHORITY_DAYS)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(
            _key_usage(key_cert_sign=True, crl_sign=True), critical=True
        )
        certificate = _signed(builder, key)
        write_private(folder / f"{CA_NAME}.key", _key_pem(key))
        (folder / f"{CA_NAME}.pem").write_bytes(_pem(certificate))
        return cls(folder, key, certificate, is_new=True)

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        days: float,
        not_before: datetime | None = None,
    ) -> x509.Certificate:
        """Write a new key and certificate for `name`, and replace present ones.

        With `hosts` the certificate is for a broker, which is a server and a client of the other
        brokers; else for a client."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        subject = _name(name)
        builder = _builder(subject, self._certificate.subject, key, days, not_before)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        builder = builder.add_extension(_key_usage(digital_signature=True), critical=True)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            critical=False,
        )
        certificate = _signed(builder, self._key)
        self._write(name, key, certificate)
        return certificate

    def _write(
        self, name: str, key: EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        private, public = _key_pem(key), _pem(certificate)
        write_private(self.folder / f"{name}.key", private)
        (self.folder / f"{name}.crt").write_bytes(public)
        # Last: a broker that follows this file never sees a key without its certificate.
        write_private(self.folder / f"{name}.pem", private + public)

    def revoke(self, *serial_numbers: int) -> Path:
        """Write a revocation list with these certificates, and return its file."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder()
        builder = builder.issuer_name(self._certificate.subject)
        builder = builder.last_update(now - _BEFORE).next_update(now + timedelta(days=30))
        for number in serial_numbers:
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        file = self.folder / f"{CA_NAME}.crl"
        file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return file


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; readers see the old or the new content."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def _checked(key: object, file: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError(  # noqa: TRY004  # the content of a file, not an argument
            f"{file} is not a key that `millstream tls init` has made"
        )
    return key


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    days: float,
    not_before: datetime | None = None,
) -> x509.CertificateBuilder:
    from cryptography import x509

    start = not_before or datetime.now(UTC) - _BEFORE
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days) + _BEFORE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, signer: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(signer, hashes.SHA256())


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)
