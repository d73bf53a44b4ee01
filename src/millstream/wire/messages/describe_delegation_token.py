"""DescribeDelegationToken: the delegation tokens of owners, with their HMACs (KIP-48)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import array, int16, int32, int64, nullable_array, octets, string
from millstream.wire.schema import Message, message, struct


@message(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(1, 3))
class DescribeDelegationTokenRequest(Message):
    @struct
    class Owner:
        principal_type: str = string()
        principal_name: str = string()

    owners: list[Owner] | None = nullable_array(Owner)


@message(ApiKey.DESCRIBE_DELEGATION_TOKEN, versions=(1, 3))
class DescribeDelegationTokenResponse(Message):
    @struct
    class Token:
        @struct
        class Renewer:
            principal_type: str = string()
            principal_name: str = string()

        principal_type: str = string()
        principal_name: str = string()
        token_requester_principal_type: str = string(since=3, ignorable=True)
        token_requester_principal_name: str = string(since=3, ignorable=True)
        issue_timestamp: int = int64()
        expiry_timestamp: int = int64()
        max_timestamp: int = int64()
        token_id: str = string()
        hmac: bytes = octets()
        renewers: list[Renewer] = array(Renewer)

    error_code: int = int16()
    tokens: list[Token] = array(Token)
    throttle_time_ms: int = int32()
