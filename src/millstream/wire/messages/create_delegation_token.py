"""CreateDelegationToken: a new delegation token (KIP-48), from version 3 for another owner."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int64, nullable_string, octets, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.CREATE_DELEGATION_TOKEN, versions=(1, 3))
class CreateDelegationTokenRequest(Message):
    @struct
    class Renewer:
        principal_type: str = string()
        principal_name: str = string()

    owner_principal_type: str | None = nullable_string(since=3)
    owner_principal_name: str | None = nullable_string(since=3)
    renewers: list[Renewer] = array(Renewer)
    max_lifetime_ms: int = int64()


@message(ApiKey.CREATE_DELEGATION_TOKEN, versions=(1, 3))
class CreateDelegationTokenResponse(Message):
    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3, ignorable=True)
    token_requester_principal_name: str = string(since=3, ignorable=True)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = octets()
    throttle_time_ms: int = int32()
