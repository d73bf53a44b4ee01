"""FindCoordinator: versions 0 to 6.

The coordinator of a group is the leader of the group's partition of the offsets topic, and the
coordinator of a transactional id is the leader of its partition of the transactions topic. Either
topic is created when a client first asks; the response then waits for it. There is no coordinator
of share groups: COORDINATOR_NOT_AVAILABLE, which clients retry. From version 4 a request may have
any number of keys.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry
from millstream.coordination.key_partition import partition_of
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_Row = FindCoordinatorResponse.Coordinator
_BATCHED_SINCE = 4
#: By key type, the topic whose partitions the keys are mapped to.
_TOPICS = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
_SHARE_GROUP = 2


def handle(
    request: FindCoordinatorRequest, context: Context
) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
    topic = _TOPICS.get(request.key_type)
    if topic is not None and context.services.catalog.image.topic(topic) is None:
        return _create_then_find(request, topic, context)
    return _find_all(request, context)


def _error_response(
    request: FindCoordinatorRequest, context: Context, code: ErrorCode
) -> FindCoordinatorResponse:
    if context.version < _BATCHED_SINCE:
        return FindCoordinatorResponse(error_code=code, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(key=key, node_id=-1, port=-1, error_code=code)
            for key in request.coordinator_keys
        ]
    )


API: Final = ApiEntry(
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    versions=(0, 6),
    handle=handle,
    error_response=_error_response,
)


async def _create_then_find(
    request: FindCoordinatorRequest, topic: str, context: Context
) -> FindCoordinatorResponse:
    failures = await context.services.topics.create_missing([topic])
    return _find_all(request, context, failures.get(topic))


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
        topic = _TOPICS.get(key_type)
        if topic is None:
            raise _not_here(key_type)
        if failure is not None:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} can't be made: {failure.message}"
            )
        _describe(row, topic, context)
    except BrokerError as error:
        row.error_code, row.error_message = error.code, error.message
    return row


def _not_here(key_type: int) -> BrokerError:
    if key_type != _SHARE_GROUP:
        return BrokerError(ErrorCode.INVALID_REQUEST, f"there is no key type {key_type}")
    return BrokerError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker does not coordinate share groups"
    )


def _describe(row: _Row, topic: str, context: Context) -> None:
    """Fill in the leader of the partition that `row.key` is mapped to."""
    image = context.services.catalog.image
    found = image.topic(topic)
    leader = NO_LEADER
    if found is not None:
        leader = found.partitions[partition_of(row.key, len(found.partitions))].leader
    broker = image.brokers.get(leader)
    endpoint = broker.endpoint(context.listener) if broker is not None else None
    if endpoint is None:
        raise BrokerError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "the key's partition has no leader just now"
        )
    row.node_id, row.host, row.port = leader, endpoint.host, endpoint.port
