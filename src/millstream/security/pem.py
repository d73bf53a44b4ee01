"""Reads PEM text: private keys, certificates and revocation lists (CRLs). Pure.

A file may hold any of these in any order, with text between them. Values of settings may have
spaces where a file has line ends, so each object is rewritten with one line end after each part.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

_OBJECT: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s*(.*?)\s*-----END \1-----", re.DOTALL)
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
_REVOCATIONS: Final = "X509 CRL"
_KEY_END: Final = "PRIVATE KEY"


class PemObjects(NamedTuple):
    """The objects of a PEM text by kind, each as PEM text of its own."""

    keys: tuple[str, ...]
    certificates: tuple[str, ...]
    revocations: tuple[str, ...]


def parse_pem(text: str) -> PemObjects:
    """Return the objects in a text. Objects of other kinds are left out."""
    keys, certificates, revocations = [], [], []
    for match in _OBJECT.finditer(text):
        label, body = match[1], match[2]
        if label.endswith(_KEY_END):
            keys.append(_write(label, body))
        elif label in _CERTIFICATES:
            certificates.append(_write(label, body))
        elif label == _REVOCATIONS:
            revocations.append(_write(label, body))
    return PemObjects(tuple(keys), tuple(certificates), tuple(revocations))


def _write(label: str, body: str) -> str:
    # A key in the old encrypted form has headers, whose lines must stay as they are.
    content = body if ":" in body else "\n".join(body.split())
    return f"-----BEGIN {label}-----\n{content}\n-----END {label}-----\n"


def der_of(pem: str) -> bytes:
    """Return the bytes of one object. Raises ValueError."""
    match = _OBJECT.match(pem)
    if match is None:
        raise ValueError("not a PEM object")
    try:
        return base64.b64decode("".join(match[2].split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not a PEM object: {error}") from error
