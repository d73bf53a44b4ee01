"""SaslAuthenticate: one step of the authentication, in the bytes of the mechanism."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import int16, int64, nullable_string, octets
from millstream.wire.schema import Message, message


@message(ApiKey.SASL_AUTHENTICATE, versions=(0, 2))
class SaslAuthenticateRequest(Message):
    auth_bytes: bytes = octets()


@message(ApiKey.SASL_AUTHENTICATE, versions=(0, 2))
class SaslAuthenticateResponse(Message):
    error_code: int = int16()
    error_message: str | None = nullable_string()
    auth_bytes: bytes = octets()
    session_lifetime_ms: int = int64(since=1, ignorable=True)
