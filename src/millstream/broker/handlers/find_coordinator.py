"""FindCoordinator: versions 0 to 6.

The coordinator of a group is the leader of the group's partition of the offsets topic, and the
coordinator of a transactional id is the leader of its partition of the transactions topic. Either
topic is created when a client first asks; the response then waits for it. There is no coordinator
of share groups (version 6): COORDINATOR_NOT_AVAILABLE, which clients retry. From version 4 a
request may have any number of keys. A key that the client may not describe gets an error, and
creates no topic.
"""

from __future__ import annotations

from collections.abc import Container, Coroutine
from typing import Any, Final

from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import DENIAL_MESSAGE
from millstream.coordination.key_partition import partition_of
from millstream.groups.offsets_topic import OFFSETS_TOPIC
from millstream.model.acl import DENIAL_CODES, Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.transactions.state_topic import TRANSACTIONS_TOPIC
from millstream.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_Row = FindCoordinatorResponse.Coordinator
_BATCHED_SINCE = 4
_SHARE_GROUPS_SINCE = 6
#: By key type, the topic whose partitions the keys are mapped to.
_TOPICS = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
_RESOURCE_TYPES = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
_SHARE_GROUP = 2


def handle(
    request: FindCoordinatorRequest, context: Context
) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
    if request.key_type == _SHARE_GROUP and context.version >= _SHARE_GROUPS_SINCE:
        context.require_cluster(Operation.CLUSTER_ACTION)
    topic = _TOPICS.get(request.key_type)
    keys = request.coordinator_keys if context.version >= _BATCHED_SINCE else [request.key]
    denied = frozenset(key for key in keys if not _is_allowed(request.key_type, key, context))
    if (
        topic is not None
        and len(denied) < len(set(keys))
        and context.services.catalog.image.topic(topic) is None
    ):
        return _create_then_find(request, topic, denied, context)
    return _find_all(request, denied, context)


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
    access=(
        Right(Operation.DESCRIBE, ResourceType.GROUP, "for a group"),
        Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "for a transactional id"),
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "for a share group"),
    ),
)


async def _create_then_find(
    request: FindCoordinatorRequest, topic: str, denied: Container[str], context: Context
) -> FindCoordinatorResponse:
    failures = await context.services.topics.create_missing([topic])
    return _find_all(request, denied, context, failures.get(topic))


def _find_all(
    request: FindCoordinatorRequest,
    denied: Container[str],
    context: Context,
    failure: BrokerError | None = None,
) -> FindCoordinatorResponse:
    if context.version >= _BATCHED_SINCE:
        rows = [
            _denied(request.key_type, key)
            if key in denied
            else _find(request.key_type, key, context, failure)
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=rows)
    if request.key in denied:
        row = _denied(request.key_type, request.key)
    else:
        row = _find(request.key_type, request.key, context, failure)
    return FindCoordinatorResponse(
        error_code=row.error_code,
        error_message=row.error_message,
        node_id=row.node_id,
        host=row.host,
        port=row.port,
    )


def _is_allowed(key_type: int, key: str, context: Context) -> bool:
    resource_type = _RESOURCE_TYPES.get(key_type)
    return resource_type is None or context.allows(Operation.DESCRIBE, resource_type, key)


def _denied(key_type: int, key: str) -> _Row:
    code = DENIAL_CODES[_RESOURCE_TYPES[key_type]]
    return _Row(key=key, node_id=-1, port=-1, error_code=code, error_message=DENIAL_MESSAGE)


def _find(key_type: int, key: str, context: Context, failure: BrokerError | None) -> _Row:
    row = _Row(key=key, node_id=-1, port=-1)
    try:
        topic = _TOPICS.get(key_type)
        if topic is None:
            raise _not_here(key_type, context.version)
        if failure is not None:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} can't be made: {failure.message}"
            )
        _describe(row, topic, context)
    except BrokerError as error:
        row.error_code, row.error_message = error.code, error.message
    return row


def _not_here(key_type: int, version: int) -> BrokerError:
    if key_type != _SHARE_GROUP or version < _SHARE_GROUPS_SINCE:
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
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "the key's partition has no leader at present"
        )
    row.node_id, row.host, row.port = leader, endpoint.host, endpoint.port
