"""FindCoordinator: versions 0 to 6.

This broker coordinates neither groups nor transactions, and says so: COORDINATOR_NOT_AVAILABLE for
every key, which clients retry; INVALID_REQUEST for a key type that does not exist.
"""

from __future__ import annotations

from millstream.broker.context import Context
from millstream.model.error import ErrorCode
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_BATCHED_SINCE = 4
_KEY_TYPES = {0: "groups", 1: "transactions", 2: "share groups"}


def handle(request: FindCoordinatorRequest, context: Context) -> FindCoordinatorResponse:
    kind = _KEY_TYPES.get(request.key_type)
    if kind is None:
        code, message = ErrorCode.INVALID_REQUEST, f"there is no key type {request.key_type}"
    else:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        message = f"this broker does not coordinate {kind}"
    if context.version < _BATCHED_SINCE:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=-1, port=-1, error_code=code, error_message=message
            )
            for key in request.coordinator_keys
        ]
    )
