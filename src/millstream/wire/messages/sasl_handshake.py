"""SaslHandshake: selects a mechanism before SaslAuthenticate.

After version 0, whose messages are the same, those of the mechanism follow without headers.
"""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import int16, string, string_array
from millstream.wire.schema import Message, message


@message(ApiKey.SASL_HANDSHAKE, versions=(0, 1))
class SaslHandshakeRequest(Message):
    mechanism: str = string()


@message(ApiKey.SASL_HANDSHAKE, versions=(0, 1))
class SaslHandshakeResponse(Message):
    error_code: int = int16()
    mechanisms: list[str] = string_array()
