"""GetTelemetrySubscriptions: version 0.

Returns the metrics that a client should push, and the interval (KIP-714). A client that matches no
subscription gets no metrics and the default interval, after which it asks again. Unlike Kafka this
broker requests cumulative sums. THROTTLING_QUOTA_EXCEEDED if a client asks again too soon.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.context import Context
from millstream.broker.dispatch import OPEN, ApiEntry
from millstream.model.error import BrokerError
from millstream.records.compression import CompressionType
from millstream.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

#: In order of preference.
_COMPRESSION_TYPES: Final = (
    CompressionType.ZSTD,
    CompressionType.LZ4,
    CompressionType.GZIP,
    CompressionType.SNAPPY,
)


def handle(
    request: GetTelemetrySubscriptionsRequest, context: Context
) -> GetTelemetrySubscriptionsResponse:
    telemetry = context.services.telemetry
    assert telemetry is not None, "the API is only served with telemetry"
    try:
        instance_id, instance = telemetry.get(bytes(request.client_instance_id), context)
    except BrokerError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.plan.subscription_id,
        accepted_compression_types=list(_COMPRESSION_TYPES),
        push_interval_ms=instance.plan.interval_ms,
        telemetry_max_bytes=telemetry.options.bytes_max,
        requested_metrics=list(instance.plan.metrics),
    )


API: Final = ApiEntry(
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    versions=(0, 0),
    handle=handle,
    access=OPEN,
)
