"""SaslHandshake: versions 0 and 1.

Names the mechanism of the login that follows, or of its renewal. A mechanism that the listener does
not have gets UNSUPPORTED_SASL_MECHANISM with the list of its mechanisms, and the connection is
closed. On a listener without SASL: ILLEGAL_SASL_STATE.

After version 1 SaslAuthenticate has the messages of the mechanism. After version 0 they have no
request headers: `broker/login/` reads them.
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
    versions=(0, 1),
    handle=handle,
    access=OPEN,
)
