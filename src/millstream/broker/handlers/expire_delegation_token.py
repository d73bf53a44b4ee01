"""ExpireDelegationToken: versions 1 and 2. Sets a token's expiry.

A negative period deletes the token, also one that has expired; the response then has the present
time.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import OPEN, ApiEntry
from millstream.broker.login.token_request import alter_token
from millstream.model.error import BrokerError
from millstream.security.delegation_token import expire_token
from millstream.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)


async def handle(
    request: ExpireDelegationTokenRequest, context: Context
) -> ExpireDelegationTokenResponse:
    now_ms, period_ms = context.services.clock.wall_ms(), request.expiry_time_period_ms
    try:
        token = await alter_token(
            context,
            request.hmac,
            lambda found: expire_token(found, context.client.principal, period_ms, now_ms),
        )
    except BrokerError as error:
        return ExpireDelegationTokenResponse(error_code=error.code)
    expiry_ms = now_ms if token is None else token.expiry_ms
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)


API: Final = ApiEntry(
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    versions=(1, 2),
    handle=handle,
    audit=change.token_changed,
    # The owner and the renewers of a token need no right.
    access=OPEN,
)
