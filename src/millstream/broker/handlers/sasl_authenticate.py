"""SaslAuthenticate: versions 0 to 2.

Passes one message of a login to `broker/login/`. A failed login gets SASL_AUTHENTICATION_FAILED,
and the connection is closed. On a listener without SASL, and after a login: ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import OPEN, ApiEntry, Outcome
from millstream.model.error import ErrorCode
from millstream.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


def handle(request: SaslAuthenticateRequest, context: Context) -> Outcome[SaslAuthenticateResponse]:
    login = context.client.login
    if login is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="the listener has no authentication by SASL",
        )
    return login.authenticate(request, context)


API: Final = ApiEntry(
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    versions=(0, 2),
    handle=handle,
    access=OPEN,
)
