"""Reads X.509 certificates: subject and validity, from DER. Pure.

The subject is written as Java's `X500Principal.getName()` writes it (RFC 2253), because ACLs of
Kafka clusters and mapping rules contain names in this form: the attributes in reverse order, short
names for the common types, and every other type as its number with the value in hexadecimal. Java
also escapes `=` and `#` anywhere in a value.

Only structure that precedes the public key is parsed. OpenSSL verifies signatures.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_ID: Final = 0x06
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17

#: The attribute types with a short name in RFC 2253.
_SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
#: The string types of ASN.1, and their encodings.
_STRING_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACE: Final = " \r"


class Certificate(NamedTuple):
    """The fields of a certificate that the broker shows and uses."""

    #: The distinguished name, in the form of RFC 2253.
    subject: str
    not_before: datetime
    not_after: datetime


class _Element(NamedTuple):
    tag: int
    content: bytes
    #: The whole element, with tag and length.
    encoded: bytes


def parse_certificate(der: bytes) -> Certificate:
    """Parse a certificate. Raises ValueError if it is malformed."""
    try:
        (certificate,) = _elements(der)
        fields = _elements(_elements(certificate.content)[0].content)
        if fields[0].tag == _EXPLICIT_VERSION:
            fields = fields[1:]
        _, _, _, validity, subject = fields[:5]
        not_before, not_after = map(_time, _elements(validity.content))
        return Certificate(_name(subject), not_before, not_after)
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"malformed certificate: {error}") from error


def _elements(data: bytes) -> list[_Element]:
    """Split the content of a constructed element."""
    found = []
    position = 0
    while position < len(data):
        start = position
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        end = position + length
        if end > len(data):
            raise ValueError("an element exceeds its container")
        found.append(_Element(tag, data[position:end], data[start:end]))
        position = end
    return found


def _time(element: _Element) -> datetime:
    text = element.content.decode("ascii")
    if element.tag == _UTC_TIME:
        # The year has two digits; 50 to 99 mean 1950 to 1999 (RFC 5280).
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _name(subject: _Element) -> str:
    if subject.tag != _SEQUENCE:
        raise ValueError("the subject is not a sequence")
    return ",".join(_relative_name(each) for each in reversed(_elements(subject.content)))


def _relative_name(element: _Element) -> str:
    if element.tag != _SET:
        raise ValueError("a part of the subject is not a set")
    pairs = (_elements(each.content) for each in _elements(element.content))
    return "+".join(_attribute(kind, value) for kind, value in pairs)


def _attribute(kind: _Element, value: _Element) -> str:
    number = _object_id(kind)
    name = _SHORT_NAMES.get(number)
    encoding = _STRING_ENCODINGS.get(value.tag)
    if name is None or encoding is None:
        return f"{name or number}=#{value.encoded.hex()}"
    return f"{name}={_escape(value.content.decode(encoding))}"


def _escape(text: str) -> str:
    escaped = "".join(
        f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text
    )
    inner = escaped.strip(_SPACE)
    lead = len(escaped) - len(escaped.lstrip(_SPACE)) if inner else len(escaped)
    before, after = escaped[:lead], escaped[lead + len(inner) :]
    return "".join(f"\\{each}" for each in before) + inner + "".join(f"\\{each}" for each in after)


def _object_id(element: _Element) -> str:
    if element.tag != _OBJECT_ID or not element.content:
        raise ValueError("an attribute has no type")
    numbers: list[int] = []
    value = 0
    for byte in element.content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
