"""PushTelemetry: version 0.

Accepts metrics that a client pushes, for Prometheus (KIP-714). INVALID_RECORD if the payload is not
valid; `Telemetry.push` documents the other errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import OPEN, ApiEntry
from millstream.model.error import BrokerError
from millstream.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


def handle(
    request: PushTelemetryRequest, context: Context
) -> PushTelemetryResponse | Coroutine[Any, Any, PushTelemetryResponse]:
    telemetry = context.services.telemetry
    assert telemetry is not None, "the API is only served with telemetry"
    try:
        taking = telemetry.push(request, context)
    except BrokerError as error:
        return PushTelemetryResponse(error_code=error.code)
    return _respond(taking)


API: Final = ApiEntry(
    PushTelemetryRequest,
    PushTelemetryResponse,
    versions=(0, 0),
    handle=handle,
    access=OPEN,
)


async def _respond(taking: Awaitable[None]) -> PushTelemetryResponse:
    try:
        await taking
    except BrokerError as error:
        return PushTelemetryResponse(error_code=error.code)
    return PushTelemetryResponse()
