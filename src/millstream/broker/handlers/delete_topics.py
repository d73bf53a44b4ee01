"""DeleteTopics: versions 1 to 6.

By name, or from version 6 by id. A topic that is named twice is not deleted. No client sees the
topic once the response is sent; its files are deleted in the background. From version 5 topics
above the client's quota on mutations are not deleted (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import DENIAL_MESSAGE, error_rows
from millstream.broker.quota.client_throttle import MutationQuota
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import NO_TOPIC_ID, TopicId
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

_Row = DeleteTopicsResponse.Topic
_TOPICS_SINCE = 6
_DISABLED_SINCE = 3
_STRICT_QUOTA_SINCE = 5


async def handle(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
    if context.version >= _TOPICS_SINCE:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        wanted = [(name, NO_TOPIC_ID) for name in request.topic_names]
    counts = Counter(wanted)
    rows = [_Row(name=name, topic_id=topic_id) for name, topic_id in counts]
    deletes_all = context.holds_cluster(Operation.DELETE)
    deletable: list[tuple[_Row, str | TopicId]] = []
    quota = MutationQuota(context, strict_since=_STRICT_QUOTA_SINCE)
    for row in rows:
        is_repeated = counts[row.name, row.topic_id] > 1
        rejection = _rejection(row, context, is_repeated=is_repeated)
        if rejection is None and not deletes_all:
            rejection = _denial(row, context)
        if rejection is None:
            rejection = _excess(row, context, quota)
        if rejection is None:
            deletable.append((row, row.topic_id if row.name is None else row.name))
        else:
            row.error_code, row.error_message = rejection.code, rejection.message
    results = await context.services.catalog.delete_topics([each for _, each in deletable])
    for (row, _), result in zip(deletable, results, strict=True):
        if isinstance(result, BrokerError):
            row.error_code, row.error_message = result.code, result.message
        else:
            row.name, row.topic_id = result.name, result.topic_id
    return DeleteTopicsResponse(responses=rows, throttle_time_ms=quota.throttle_ms)


def _error_response(
    request: DeleteTopicsRequest, context: Context, code: ErrorCode
) -> DeleteTopicsResponse:
    if context.version >= _TOPICS_SINCE:
        rows = error_rows(_Row, request.topics, ["name", "topic_id"], error_code=code)
    else:
        rows = [_Row(name=name, error_code=code) for name in request.topic_names]
    return DeleteTopicsResponse(responses=rows)


def _denial(row: _Row, context: Context) -> BrokerError | None:
    """Return why the client may not delete the topic. A topic that it may not describe is denied
    whether or not it exists."""
    image = context.services.catalog.image
    denial = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, DENIAL_MESSAGE)
    if row.name is not None:
        if not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, row.name):
            return denial
        if image.topic(row.name) is None:
            return None
        is_allowed = context.allows(Operation.DELETE, ResourceType.TOPIC, row.name)
        return None if is_allowed else denial
    found = image.topic_by_id(row.topic_id)
    if found is None or context.allows(Operation.DELETE, ResourceType.TOPIC, found.name):
        return None
    if context.shows(Operation.DESCRIBE, ResourceType.TOPIC, found.name):
        row.name = found.name
    return denial


API: Final = ApiEntry(
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    versions=(1, 6),
    handle=handle,
    audit=change.topics_deleted,
    error_response=_error_response,
    access=(
        Right(Operation.DELETE, ResourceType.CLUSTER, "to delete any topic"),
        Right(Operation.DELETE, ResourceType.TOPIC, "without Delete on the cluster"),
    ),
)


def _rejection(row: _Row, context: Context, *, is_repeated: bool) -> BrokerError | None:
    if not context.services.config.topics.delete_topic_enable:
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if context.version >= _DISABLED_SINCE
            else ErrorCode.INVALID_REQUEST
        )
        return BrokerError(code, "delete.topic.enable is false on this broker")
    if (row.name is None) == (row.topic_id == NO_TOPIC_ID):
        return BrokerError(ErrorCode.INVALID_REQUEST, "name a topic either by name or by id")
    if is_repeated:
        return BrokerError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
    return None


def _excess(row: _Row, context: Context, quota: MutationQuota) -> BrokerError | None:
    """Return the error if the deletion is above the client's quota on mutations."""
    image = context.services.catalog.image
    topic = image.topic_by_id(row.topic_id) if row.name is None else image.topic(row.name)
    if topic is None:
        return None
    try:
        quota.take(len(topic.partitions))
    except BrokerError as error:
        return error
    return None
