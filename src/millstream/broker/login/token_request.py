"""What the APIs of delegation tokens share: who may use them, and how they change one token."""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import Context
from millstream.metadata.security_record import (
    TokenRecord,
    decode_token,
    encode_token,
    token_key,
)
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.principal import ANONYMOUS
from millstream.security.delegation_token import TokenLimits, find_token


def check_allowed(context: Context) -> str:
    """Return the secret key of the tokens. Raises BrokerError if this cluster has no tokens, if the
    client is anonymous, or if it logged in with a token."""
    secret = context.services.config.sasl.delegation_token_secret_key
    login = context.client.login
    is_token = login is not None and login.identity is not None and login.identity.is_token
    if is_token or context.client.principal == ANONYMOUS:
        raise BrokerError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            "only an authenticated client may do this, and not one that logged in with a token",
        )
    if not secret:
        raise BrokerError(
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set"
        )
    return secret


def limits(config: BrokerConfig) -> TokenLimits:
    """Return the lifetimes that the settings allow."""
    return TokenLimits(
        config.sasl.delegation_token_max_lifetime_ms, config.sasl.delegation_token_expiry_time_ms
    )


async def alter_token(
    context: Context, hmac: bytes, edit: Callable[[TokenRecord], TokenRecord | None]
) -> TokenRecord | None:
    """Replace the token with this HMAC by the result of `edit`; None deletes the token. Returns the
    result. Raises BrokerError."""
    catalog = context.services.catalog
    token = find_token(catalog.image.tokens.values(), check_allowed(context), hmac)
    result: TokenRecord | None = None

    def edit_value(value: bytes | None) -> bytes | None:
        nonlocal result
        if value is None:
            raise BrokerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no such token")
        result = edit(decode_token(value))
        return None if result is None else encode_token(result)

    await catalog.alter_key(token_key(token.token_id), edit_value)
    return result
