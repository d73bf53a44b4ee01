"""CreatePartitions: versions 0 to 3. Adds partitions to topics; the client may assign replicas.

From version 3 topics above the client's quota on mutations are rejected (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import DENIAL_MESSAGE, error_rows, failure_message
from millstream.broker.quota.client_throttle import MutationQuota
from millstream.metadata.topic_change import NewPartitions
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)

_Row = CreatePartitionsResponse.Topic
_STRICT_QUOTA_SINCE = 3


async def handle(request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
    topics = context.services.topics
    quota = MutationQuota(context, strict_since=_STRICT_QUOTA_SINCE)
    rows: list[_Row] = []
    planned: list[tuple[_Row, NewPartitions]] = []
    counts = Counter(topic.name for topic in request.topics)
    for topic in {topic.name: topic for topic in request.topics}.values():
        row = _Row(name=topic.name)
        rows.append(row)
        if counts[topic.name] > 1:
            row.error_code = ErrorCode.INVALID_REQUEST
            row.error_message = "the topic is named more than once"
            continue
        if not context.allows(Operation.ALTER, ResourceType.TOPIC, topic.name):
            row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            row.error_message = DENIAL_MESSAGE
            continue
        assignment = (
            None
            if topic.assignments is None
            else [tuple(each.broker_ids) for each in topic.assignments]
        )
        try:
            growth = topics.plan_growth(topic.name, topic.count, assignment)
            quota.take(len(growth.assignment))
            planned.append((row, growth))
        except BrokerError as error:
            row.error_code, row.error_message = error.code, error.message
    results = await topics.grow([new for _, new in planned], validate_only=request.validate_only)
    for (row, _), result in zip(planned, results, strict=True):
        if isinstance(result, BrokerError):
            row.error_code, row.error_message = result.code, result.message
    return CreatePartitionsResponse(results=rows, throttle_time_ms=quota.throttle_ms)


def _error_response(
    request: CreatePartitionsRequest, context: Context, code: ErrorCode
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=error_rows(
            _Row, request.topics, ["name"], error_code=code, error_message=failure_message(code)
        )
    )


API: Final = ApiEntry(
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    versions=(0, 3),
    handle=handle,
    audit=change.partitions_created,
    error_response=_error_response,
    access=(Right(Operation.ALTER, ResourceType.TOPIC),),
)
