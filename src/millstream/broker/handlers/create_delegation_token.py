"""CreateDelegationToken: versions 1 to 3.

Creates a token with which clients log in by SCRAM (KIP-48). A token for another owner needs
CreateTokens on that user; without an authorizer no client has this right. Not allowed without
authentication, or for a client that is itself logged in with a token.

A token for the client itself keeps the groups of its login, so that ACLs of groups apply to clients
with the token too.
"""

from __future__ import annotations

import base64
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.login.token_request import check_allowed, limits
from millstream.metadata.security_record import TokenRecord, encode_token, token_key
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.principal import Principal
from millstream.security.credential_store import token_hmac
from millstream.security.delegation_token import create_token
from millstream.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)


async def handle(
    request: CreateDelegationTokenRequest, context: Context
) -> CreateDelegationTokenResponse:
    requester = context.client.principal
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    response = CreateDelegationTokenResponse(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
    )
    try:
        secret = check_allowed(context)
        if str(owner) != str(requester) and not _may_create_for(owner, context):
            raise BrokerError(
                ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "the owner is another user"
            )
        token = _token(request, owner, context)
    except BrokerError as error:
        response.error_code = error.code
        return response
    await context.services.catalog.alter_key(
        token_key(token.token_id), lambda _: encode_token(token)
    )
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expiry_ms
    response.max_timestamp_ms = token.expiry_ms_max
    response.token_id = token.token_id
    response.hmac = token_hmac(secret, token.token_id)
    return response


API: Final = ApiEntry(
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    versions=(1, 3),
    handle=handle,
    audit=change.token_created,
    access=(Right(Operation.CREATE_TOKENS, ResourceType.USER, "for another owner"),),
)


def _may_create_for(owner: Principal, context: Context) -> bool:
    return context.services.authorizer is not None and context.allows(
        Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
    )


def _token(
    request: CreateDelegationTokenRequest, owner: Principal, context: Context
) -> TokenRecord:
    services, client = context.services, context.client
    groups: tuple[str, ...] = ()
    # The groups of another owner are not known.
    if str(owner) == str(client.principal) and client.login and client.login.identity:
        groups = client.login.identity.groups
    token_id = base64.urlsafe_b64encode(services.random.randbytes(16)).decode().rstrip("=")
    return create_token(
        token_id,
        owner,
        client.principal,
        [Principal(each.principal_type, each.principal_name) for each in request.renewers],
        request.max_lifetime_ms,
        limits(services.config),
        services.clock.wall_ms(),
        groups,
    )
