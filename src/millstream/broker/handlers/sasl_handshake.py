"""SaslHandshake: version 1.

Names the mechanism of the login that follows, or of its renewal. A mechanism that the listener does
not have gets UNSUPPORTED_SASL_MECHANISM with the list of its mechanisms, and the connection is
closed. On a listener without SASL: ILLEGAL_SASL_STATE.

Version 0, in which tokens follow without a request header, is not supported. ApiVersions lists it,
because old versions of librdkafka take its absence for a broker without SASL.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import OPEN, ApiEntry, Outcome
from millstream.model.error import ErrorCode
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(request: SaslHandshakeRequest, context: Context) -> Outcome[SaslHandshakeResponse]:
    login = context.client.login
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return login.handshake(request, context)


API: Final = ApiEntry(
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    versions=(1, 1),
    handle=handle,
    listed_from=0,
    access=OPEN,
)
