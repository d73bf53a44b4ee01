"""UnregisterBroker: removes a broker from the cluster."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import int16, int32, nullable_string
from millstream.wire.schema import Message, message


@message(ApiKey.UNREGISTER_BROKER, versions=(0, 0))
class UnregisterBrokerRequest(Message):
    broker_id: int = int32()


@message(ApiKey.UNREGISTER_BROKER, versions=(0, 0))
class UnregisterBrokerResponse(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
