"""The server side of OAUTHBEARER (RFC 7628): one message with a bearer token.

    n,[a=<authorization id>],\\x01auth=Bearer <token>\\x01[<extension>=<value>\\x01...]\\x01

States: FIRST, then over if the token is valid. Otherwise the challenge is a JSON error, the client
sends one more message, and the login fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from millstream.security.sasl.exchange import (
    Accepted,
    AuthenticationError,
    Challenge,
    Identity,
    Step,
    Work,
)
from millstream.security.sasl.scram_message import parse_saslname

_MESSAGE: Final = re.compile(
    r"[ny],(?:a=(?P<authzid>[^,\0\x01]+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)+)\x01\Z"
)
_BEARER: Final = re.compile(r"Bearer +(?P<token>[A-Za-z0-9\-._~+/]+=*)\s*\Z", re.IGNORECASE)
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'


class OAuthBearerServer:
    """The server side of one exchange."""

    __slots__ = ("_failure", "_validate")

    def __init__(self, validate: Callable[[str], Identity]) -> None:
        #: Returns the identity that a token proves. Raises AuthenticationError.
        self._validate = validate
        self._failure: AuthenticationError | None = None

    def respond(self, message: bytes, /) -> Step:
        if self._failure is not None:
            raise self._failure
        authzid, token = parse_message(message)
        return Work(lambda: self._check(authzid, token))

    def _check(self, authzid: str, token: str) -> Challenge | Accepted:
        try:
            identity = self._validate(token)
            if authzid and authzid != identity.principal.name:
                raise AuthenticationError("the authorization id differs from the token's subject")
        except AuthenticationError as error:
            self._failure = error
            return Challenge(_INVALID_TOKEN)
        return Accepted(b"", identity)


def parse_message(message: bytes) -> tuple[str, str]:
    """Return the authorization id, which may be empty, and the token. Raises
    AuthenticationError."""
    try:
        found = _MESSAGE.match(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise AuthenticationError("the message is malformed")
    pairs = [pair.partition("=") for pair in found["pairs"].split("\x01") if pair]
    values = {name.lower(): value for name, _, value in pairs}
    if len(values) != len(pairs):
        raise AuthenticationError("the message has a key twice")
    bearer = _BEARER.match(values.get("auth", ""))
    if bearer is None:
        raise AuthenticationError("the message has no bearer token")
    return parse_saslname(found["authzid"] or ""), bearer["token"]
