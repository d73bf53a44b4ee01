"""DescribeDelegationToken: versions 1 to 3.

Lists the valid tokens that the client owns, has requested or may renew, with their HMACs. A client
sees tokens of others with Describe on the token, or with DescribeTokens on its owner; without an
authorizer they are left out.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.login.token_request import check_allowed
from millstream.metadata.security_record import TokenRecord
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError
from millstream.model.principal import Principal, parse_principal
from millstream.security.credential_store import token_hmac
from millstream.security.delegation_token import visible_tokens
from millstream.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

_Row = DescribeDelegationTokenResponse.Token


def handle(
    request: DescribeDelegationTokenRequest, context: Context
) -> DescribeDelegationTokenResponse:
    services = context.services
    try:
        secret = check_allowed(context)
    except BrokerError as error:
        return DescribeDelegationTokenResponse(error_code=error.code)
    owners = None
    if request.owners is not None:
        owners = [Principal(each.principal_type, each.principal_name) for each in request.owners]
    tokens = visible_tokens(
        services.catalog.image.tokens.values(),
        context.client.principal,
        owners,
        services.clock.wall_ms(),
        partial(_may_see, context),
    )
    return DescribeDelegationTokenResponse(tokens=[_row(token, secret) for token in tokens])


API: Final = ApiEntry(
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    versions=(1, 3),
    handle=handle,
    access=(
        Right(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "for tokens of others"),
        Right(Operation.DESCRIBE_TOKENS, ResourceType.USER, "for tokens of others, instead"),
    ),
)


def _may_see(context: Context, token: TokenRecord) -> bool:
    return context.services.authorizer is not None and (
        context.shows(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or context.shows(Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )


def _row(token: TokenRecord, secret: str) -> _Row:
    owner, requester = parse_principal(token.owner), parse_principal(token.requester)
    renewers = [parse_principal(text) for text in token.renewers]
    return _Row(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.expiry_ms_max,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
        renewers=[
            _Row.Renewer(principal_type=each.kind, principal_name=each.name) for each in renewers
        ],
    )
