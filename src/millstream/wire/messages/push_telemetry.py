"""PushTelemetry: metrics of a client, as OpenTelemetry's MetricsData in protobuf (KIP-714)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import boolean, int8, int16, int32, octets, uuid
from millstream.wire.schema import Message, message


@message(ApiKey.PUSH_TELEMETRY, versions=(0, 0))
class PushTelemetryRequest(Message):
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    #: Whether this is the last push of the client.
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = octets()


@message(ApiKey.PUSH_TELEMETRY, versions=(0, 0))
class PushTelemetryResponse(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
