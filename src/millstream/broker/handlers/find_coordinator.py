"""FindCoordinator: versions 0 to 6.

A group's coordinator is the leader of the group's partition of the offsets topic, which is made
when somebody first asks; the answer then waits for it. Transactions and share groups have no
coordinator here: COORDINATOR_NOT_AVAILABLE, which clients retry. From version 4 any number of keys
are looked up at once.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from millstream.broker.context import Context
from millstream.groups.placement import OFFSETS_TOPIC, partition_of
from millstream.metadata.record import NO_LEADER
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_Row = FindCoordinatorResponse.Coordinator
_BATCHED_SINCE = 4
_GROUP = 0
_OTHER_KINDS = {1: "transactions", 2: "share groups"}


def handle(
    request: FindCoordinatorRequest, context: Context
) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
    if request.key_type == _GROUP and context.services.catalog.image.topic(OFFSETS_TOPIC) is None:
        return _create_then_find(request, context)
    return _find_all(request, context)


async def _create_then_find(
    request: FindCoordinatorRequest, context: Context
) -> FindCoordinatorResponse:
    failures = await context.services.topics.create_missing([OFFSETS_TOPIC])
    return _find_all(request, context, failures.get(OFFSETS_TOPIC))


def _find_all(
    request: FindCoordinatorRequest, context: Context, failure: BrokerError | None = None
) -> FindCoordinatorResponse:
    if context.version >= _BATCHED_SINCE:
        rows = [_find(request.key_type, key, context, failure) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=rows)
    row = _find(request.key_type, request.key, context, failure)
    return FindCoordinatorResponse(
        error_code=row.error_code,
        error_message=row.error_message,
        node_id=row.node_id,
        host=row.host,
        port=row.port,
    )


def _find(key_type: int, key: str, context: Context, failure: BrokerError | None) -> _Row:
    row = _Row(key=key, node_id=-1, port=-1)
    try:
        if failure is not None:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{OFFSETS_TOPIC} can't be made: {failure.message}",
            )
        if key_type != _GROUP:
            raise _not_here(key_type)
        _describe(row, context)
    except BrokerError as error:
        row.error_code, row.error_message = error.code, error.message
    return row


def _not_here(key_type: int) -> BrokerError:
    kind = _OTHER_KINDS.get(key_type)
    if kind is None:
        return BrokerError(ErrorCode.INVALID_REQUEST, f"there is no key type {key_type}")
    return BrokerError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE, f"this broker does not coordinate {kind}"
    )


def _describe(row: _Row, context: Context) -> None:
    """Name the broker that leads the partition of the group `row.key`."""
    image = context.services.catalog.image
    topic = image.topic(OFFSETS_TOPIC)
    leader = NO_LEADER
    if topic is not None:
        leader = topic.partitions[partition_of(row.key, len(topic.partitions))].leader
    broker = image.brokers.get(leader)
    endpoint = broker.endpoint(context.listener) if broker is not None else None
    if endpoint is None:
        raise BrokerError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group's partition has no leader just now"
        )
    row.node_id, row.host, row.port = leader, endpoint.host, endpoint.port
