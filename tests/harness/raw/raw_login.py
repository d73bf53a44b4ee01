"""Logins with a raw client, step by step."""

from __future__ import annotations

from typing import Any

from harness.raw.raw_client import RawClient
from millstream.protocol.connection_setting import Login
from millstream.protocol.sasl import Scram
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest

SCRAM = "SCRAM-SHA-256"


def handshake(client: RawClient, mechanism: str = SCRAM) -> Any:
    return client.call(SaslHandshakeRequest(mechanism=mechanism), 1)


def authenticate(client: RawClient, message: bytes) -> Any:
    return client.call(SaslAuthenticateRequest(auth_bytes=message), 2)


def log_in(
    client: RawClient, user: str, password: str, mechanism: str = SCRAM, extension: str = ""
) -> Any:
    """Log in by PLAIN or SCRAM; return the last response."""
    assert handshake(client, mechanism).error_code == 0
    if mechanism == "PLAIN":
        return authenticate(client, f"\0{user}\0{password}".encode())
    scram = Scram(Login(mechanism, user, password), "client-nonce")
    scram._bare += extension
    challenge = authenticate(client, scram.first())
    if challenge.error_code:
        return challenge
    last = authenticate(client, scram.final(challenge.auth_bytes))
    if not last.error_code:
        scram.check(last.auth_bytes)
    return last


def log_in_by_token(client: RawClient, token: str) -> Any:
    """Log in by OAUTHBEARER; return the last response."""
    assert handshake(client, "OAUTHBEARER").error_code == 0
    response = authenticate(client, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    return authenticate(client, b"\x01") if response.auth_bytes else response
