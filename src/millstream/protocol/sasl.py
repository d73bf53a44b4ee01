"""SASL authentication: PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.connection_setting import Login, OAuthLogin
from millstream.protocol.oauth import TOKENS
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from millstream.protocol.broker_connection import BrokerConnection

#: As in Kafka's client. Fewer make the password easy to guess for a server that only claims to be
#: a broker.
_ITERATIONS_MIN: Final = 4096
_ITERATIONS_MAX: Final = 1_000_000
_NOT_SCRAM: Final = "the broker's challenge is not SCRAM's"


def log_in(connection: BrokerConnection, login: Login | OAuthLogin) -> int:
    """Authenticate a connection by SaslHandshake and SaslAuthenticate.

    Returns the session's lifetime in milliseconds, after which the broker expects another login; 0
    means no end. Raises BrokerError UNSUPPORTED_SASL_MECHANISM or SASL_AUTHENTICATION_FAILED, and
    ConnectionLost if there is no token."""
    response = connection.call(
        SaslHandshakeRequest(mechanism=login.mechanism), SaslHandshakeResponse
    )
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise BrokerError(
            ErrorCode.ILLEGAL_SASL_STATE,
            f"the listener at {connection.address} has no SASL: set security.protocol to PLAINTEXT"
            " or SSL, or connect to another port",
        )
    if response.error_code != ErrorCode.NONE:
        raise BrokerError(
            ErrorCode(response.error_code),
            f"the broker at {connection.address} supports {', '.join(response.mechanisms)}, not"
            f" sasl.mechanism {login.mechanism}",
        )
    if isinstance(login, OAuthLogin):
        return _log_in_by_token(connection, login)
    if login.mechanism == "PLAIN":
        plain = b"\0".join([b"", login.user.encode(), login.password.encode()])
        return _step(connection, plain).session_lifetime_ms
    return _log_in_by_scram(connection, Scram(login, secrets.token_hex(16)))


def _log_in_by_scram(connection: BrokerConnection, scram: Scram) -> int:
    challenge = _step(connection, scram.first())
    response = _step(connection, scram.final(challenge.auth_bytes))
    scram.check(response.auth_bytes)
    return response.session_lifetime_ms


def _log_in_by_token(connection: BrokerConnection, login: OAuthLogin) -> int:
    pairs = [("auth", f"Bearer {TOKENS.token(login)}"), *login.extensions]
    fields = "".join(f"{name}={value}\x01" for name, value in pairs)
    try:
        response = _step(connection, f"n,,\x01{fields}\x01".encode())
        if response.auth_bytes:
            # The broker has rejected the token, and says so once this message arrives.
            response = _step(connection, b"\x01")
    except BrokerError:
        TOKENS.forget(login)
        raise
    return response.session_lifetime_ms


def _step(connection: BrokerConnection, data: bytes) -> SaslAuthenticateResponse:
    response = connection.call(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse)
    if response.error_code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(response.error_code), response.error_message)
    return response


class Scram:
    """The client's half of one SCRAM exchange. Pure."""

    def __init__(self, login: Login, nonce: str) -> None:
        self._hash = "sha256" if login.mechanism.endswith("256") else "sha512"
        self._password = login.password.encode()
        self._nonce = nonce
        user = login.user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={user},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the proof for the server's challenge. Raises BrokerError if it is malformed."""
        try:
            fields = _fields(challenge)
            nonce, count = fields["r"], int(fields["i"])
            salt = base64.b64decode(fields["s"], validate=True)
        except (KeyError, ValueError):
            raise _failed(_NOT_SCRAM) from None
        if not nonce.startswith(self._nonce) or not 0 < count <= _ITERATIONS_MAX:
            raise _failed(_NOT_SCRAM)
        if count < _ITERATIONS_MIN:
            raise _failed(f"{count} iterations are too few: at least {_ITERATIONS_MIN} are safe")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, count)
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        client_key = self._mac(salted, b"Client Key")
        stored = hashlib.new(self._hash, client_key).digest()
        signature = self._mac(stored, message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, response: bytes) -> None:
        """Raise BrokerError unless the server's signature proves that it knows the password."""
        try:
            given = base64.b64decode(_fields(response).get("v", ""))
        except ValueError:
            given = b""
        if not hmac.compare_digest(given, self._signature):
            raise _failed("the broker did not prove that it knows the password")

    def _mac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._hash).digest()


def _fields(data: bytes) -> dict[str, str]:
    return {
        name: value for name, _, value in (part.partition("=") for part in data.decode().split(","))
    }


def _failed(why: str) -> BrokerError:
    return BrokerError(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
