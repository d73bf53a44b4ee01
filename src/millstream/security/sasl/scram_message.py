"""The messages of SCRAM (RFC 5802, section 7): parsing and formatting. Pure.

    client-first   n,,n=<user>,r=<nonce>[,<name>=<value>...]     "y" for "n" is allowed too
    server-first   r=<nonce>,s=<salt>,i=<iterations>
    client-final   c=<GS2 header>,r=<nonce>[,<extension>...],p=<proof>
    server-final   v=<signature>

Salt, GS2 header, proof and signature are in base64. In a user name "," is "=2C" and "=" is "=3D".
Channel binding ("p=") and mandatory extensions ("m=") are not supported.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from millstream.security.sasl.exchange import AuthenticationError

_GS2: Final = re.compile(r"(?P<header>[ny],(?:a=(?P<authzid>[^,\0]+))?,)(?P<bare>.*)\Z", re.DOTALL)
_BARE: Final = re.compile(
    r"n=(?P<user>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*)\Z"
)
_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]=[^,\0]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)\Z"
)
_ESCAPE: Final = re.compile(r"=(2C|3D|)")
_UNESCAPED: Final = {"2C": ",", "3D": "="}


class ClientFirst(NamedTuple):
    """The first message of a client."""

    #: The GS2 header, which the final message repeats.
    header: str
    authzid: str
    user: str
    nonce: str
    #: The message without the GS2 header.
    bare: str
    extensions: dict[str, str]


class ClientFinal(NamedTuple):
    """The last message of a client."""

    #: The message without the proof.
    unproved: str
    header: str
    nonce: str
    proof: bytes


def parse_client_first(message: bytes) -> ClientFirst:
    """Parse a client-first message. Raises AuthenticationError."""
    outer = _GS2.match(_text(message))
    inner = None if outer is None else _BARE.match(outer["bare"])
    if outer is None or inner is None:
        raise AuthenticationError("the client-first message is malformed")
    pairs = [part.partition("=") for part in inner["extensions"].split(",") if part]
    return ClientFirst(
        header=outer["header"],
        authzid=parse_saslname(outer["authzid"] or ""),
        user=parse_saslname(inner["user"]),
        nonce=inner["nonce"],
        bare=outer["bare"],
        extensions={name: value for name, _, value in pairs},
    )


def parse_client_final(message: bytes) -> ClientFinal:
    """Parse a client-final message. Raises AuthenticationError."""
    found = _FINAL.match(_text(message))
    if found is None:
        raise AuthenticationError("the client-final message is malformed")
    return ClientFinal(
        unproved=found["unproved"],
        header=_text(_decode(found["binding"])),
        nonce=found["nonce"],
        proof=_decode(found["proof"]),
    )


def parse_saslname(text: str) -> str:
    """Return the name that `text` encodes. Raises AuthenticationError for an invalid escape."""

    def unescape(found: re.Match[str]) -> str:
        try:
            return _UNESCAPED[found[1]]
        except KeyError:
            raise AuthenticationError("a user name has an invalid escape") from None

    return _ESCAPE.sub(unescape, text)


def format_server_first(nonce: str, salt: bytes, iterations: int) -> str:
    return f"r={nonce},s={encode(salt)},i={iterations}"


def encode(data: bytes) -> str:
    """Return data in base64."""
    return base64.b64encode(data).decode()


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("a message is not UTF-8") from None


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationError("a message has invalid base64") from None
