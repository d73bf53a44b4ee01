"""RenewDelegationToken: versions 1 and 2. Extends a token, at most to its longest lifetime."""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import OPEN, ApiEntry
from millstream.broker.login.token_request import alter_token, limits
from millstream.model.error import BrokerError
from millstream.security.delegation_token import renew_token
from millstream.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


async def handle(
    request: RenewDelegationTokenRequest, context: Context
) -> RenewDelegationTokenResponse:
    services = context.services
    try:
        token = await alter_token(
            context,
            request.hmac,
            lambda found: renew_token(
                found,
                context.client.principal,
                request.renew_period_ms,
                limits(services.config),
                services.clock.wall_ms(),
            ),
        )
    except BrokerError as error:
        return RenewDelegationTokenResponse(error_code=error.code)
    assert token is not None, "a renewal deletes nothing"
    return RenewDelegationTokenResponse(expiry_timestamp_ms=token.expiry_ms)


API: Final = ApiEntry(
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    versions=(1, 2),
    handle=handle,
    audit=change.token_changed,
    # The owner and the renewers of a token need no right.
    access=OPEN,
)
