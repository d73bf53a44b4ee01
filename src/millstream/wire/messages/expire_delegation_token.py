"""ExpireDelegationToken: ends a delegation token earlier, or at once (KIP-48)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import int16, int32, int64, octets
from millstream.wire.schema import Message, message


@message(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2))
class ExpireDelegationTokenRequest(Message):
    hmac: bytes = octets()
    expiry_time_period_ms: int = int64()


@message(ApiKey.EXPIRE_DELEGATION_TOKEN, versions=(1, 2))
class ExpireDelegationTokenResponse(Message):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
