"""GetTelemetrySubscriptions: the metrics that a client should push, and how often (KIP-714)."""

from __future__ import annotations

from millstream.wire.api import ApiKey
from millstream.wire.field import boolean, int8_array, int16, int32, string_array, uuid
from millstream.wire.schema import Message, message


@message(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=(0, 0))
class GetTelemetrySubscriptionsRequest(Message):
    #: Zeros until the broker has assigned an id.
    client_instance_id: bytes = uuid()


@message(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=(0, 0))
class GetTelemetrySubscriptionsResponse(Message):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = int8_array()
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    #: Prefixes of metric names; empty for no metrics, `*` for all.
    requested_metrics: list[str] = string_array()
