"""Logging in: PLAIN (RFC 4616) and SCRAM (RFC 5802), by SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.connection_setting import Login
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from millstream.protocol.broker_connection import Link

_ITERATIONS_MAX: Final = 1_000_000


def log_in(link: Link, login: Login) -> None:
    """Raises BrokerError: UNSUPPORTED_SASL_MECHANISM or SASL_AUTHENTICATION_FAILED."""
    answer = link.call(SaslHandshakeRequest(mechanism=login.mechanism), SaslHandshakeResponse)
    if answer.error_code != ErrorCode.NONE:
        raise BrokerError(
            ErrorCode(answer.error_code),
            f"the broker at {link.address} has {', '.join(answer.mechanisms)}, not"
            f" kafka.sasl.mechanism {login.mechanism}",
        )
    if login.mechanism == "PLAIN":
        _step(link, b"\0".join([b"", login.user.encode(), login.password.encode()]))
    else:
        _log_in_by_scram(link, Scram(login, secrets.token_hex(16)))


def _log_in_by_scram(link: Link, scram: Scram) -> None:
    challenge = _step(link, scram.first())
    scram.check(_step(link, scram.final(challenge)))


def _step(link: Link, data: bytes) -> bytes:
    answer = link.call(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse)
    if answer.error_code != ErrorCode.NONE:
        raise BrokerError(ErrorCode(answer.error_code), answer.error_message)
    return answer.auth_bytes


class Scram:
    """The client's half of one exchange. Pure."""

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
        """The proof for the server's challenge. Raises BrokerError if that is none."""
        fields = _fields(challenge)
        nonce, salt, count = fields.get("r", ""), fields.get("s", ""), fields.get("i", "")
        is_sound = nonce.startswith(self._nonce) and count.isdigit()
        if not is_sound or not 0 < int(count) <= _ITERATIONS_MAX:
            raise _failed("the broker's challenge is not SCRAM's")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, base64.b64decode(salt), int(count))
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        client_key = self._mac(salted, b"Client Key")
        stored = hashlib.new(self._hash, client_key).digest()
        signature = self._mac(stored, message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Raise BrokerError unless the server knows the password too."""
        given = base64.b64decode(_fields(answer).get("v", ""))
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
