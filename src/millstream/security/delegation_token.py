"""The rules of delegation tokens (KIP-48): creation, renewal, expiry, and who may do what. Pure.

A client that logs in with a token acts as the token's owner. The requester is the user who created
the token. The owner and the renewers may renew and expire it. A requester who is neither may only
see it. An owner who creates a token gives it the groups of the present login. A token is valid
until `expiry_ms`; a renewal sets a later time, at most `expiry_ms_max`. Times are in milliseconds
since the epoch.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from millstream.metadata.security_record import TokenRecord
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.principal import USER, Principal
from millstream.security.credential_store import token_hmac


class TokenLimits(NamedTuple):
    """The lifetimes that the settings allow."""

    lifetime_ms_max: int
    renewal_ms_max: int


def create_token(
    token_id: str,
    owner: Principal,
    requester: Principal,
    renewers: Iterable[Principal],
    lifetime_ms: int,
    limits: TokenLimits,
    now_ms: int,
    groups: tuple[str, ...] = (),
) -> TokenRecord:
    """Return a new token. A lifetime of 0 or less means the longest that the settings allow. Raises
    BrokerError."""
    named = tuple(renewers)
    if any(renewer.kind != USER for renewer in (owner, *named)):
        raise BrokerError(ErrorCode.INVALID_PRINCIPAL_TYPE, "owner and renewers must be users")
    longest_ms = limits.lifetime_ms_max
    expiry_ms_max = now_ms + (min(lifetime_ms, longest_ms) if lifetime_ms > 0 else longest_ms)
    return TokenRecord(
        token_id=token_id,
        owner=str(owner),
        requester=str(requester),
        renewers=tuple(map(str, named)),
        groups=groups,
        issued_ms=now_ms,
        expiry_ms=min(expiry_ms_max, now_ms + limits.renewal_ms_max),
        expiry_ms_max=expiry_ms_max,
    )


def renew_token(
    token: TokenRecord, who: Principal, period_ms: int, limits: TokenLimits, now_ms: int
) -> TokenRecord:
    """Return the token with a later expiry. A period of 0 or less means the longest that the
    settings allow. Raises BrokerError."""
    _check_valid(token, now_ms)
    _check_owner(token, who)
    longest_ms = limits.renewal_ms_max
    renewal_ms = min(period_ms, longest_ms) if period_ms > 0 else longest_ms
    return msgspec.structs.replace(token, expiry_ms=min(token.expiry_ms_max, now_ms + renewal_ms))


def expire_token(
    token: TokenRecord, who: Principal, period_ms: int, now_ms: int
) -> TokenRecord | None:
    """Return the token with its expiry after `period_ms`. A negative period returns None: the token
    ends at once, also if it has expired. Raises BrokerError."""
    _check_owner(token, who)
    if period_ms < 0:
        return None
    _check_valid(token, now_ms)
    return msgspec.structs.replace(token, expiry_ms=min(token.expiry_ms_max, now_ms + period_ms))


def find_token(tokens: Iterable[TokenRecord], secret: str, given: bytes) -> TokenRecord:
    """Return the token whose HMAC is `given`. Raises BrokerError."""
    for token in tokens:
        if hmac.compare_digest(token_hmac(secret, token.token_id), given):
            return token
    raise BrokerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no such token")


def visible_tokens(
    tokens: Iterable[TokenRecord],
    who: Principal,
    owners: Iterable[Principal] | None,
    now_ms: int,
    may_see: Callable[[TokenRecord], bool],
) -> Iterator[TokenRecord]:
    """Yield the valid tokens that `who` owns, has requested, may renew, or has the right to see.
    Each is owned, requested or renewed by one of `owners`; None is anyone."""
    wanted = None if owners is None else [str(owner) for owner in owners]
    for token in tokens:
        if token.expiry_ms <= now_ms:
            continue
        if wanted is not None and not any(_concerns(token, each) for each in wanted):
            continue
        if _concerns(token, str(who)) or may_see(token):
            yield token


def _concerns(token: TokenRecord, principal: str) -> bool:
    return principal in (token.owner, token.requester, *token.renewers)


def _check_valid(token: TokenRecord, now_ms: int) -> None:
    if token.expiry_ms <= now_ms:
        raise BrokerError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the token has expired")


def _check_owner(token: TokenRecord, who: Principal) -> None:
    if str(who) not in (token.owner, *token.renewers):
        raise BrokerError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "only its owner and renewers may do that"
        )
