"""CreatePartitions: versions 0 to 3. Adds partitions to topics, placed by the broker or by hand."""

from __future__ import annotations

from millstream.broker.context import Context
from millstream.metadata.topic_change import NewPartitions
from millstream.model.error import BrokerError
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)

_Row = CreatePartitionsResponse.Topic


async def handle(request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
    topics = context.services.topics
    rows: list[_Row] = []
    planned: list[tuple[_Row, NewPartitions]] = []
    for topic in request.topics:
        row = _Row(name=topic.name)
        rows.append(row)
        assignment = (
            None
            if topic.assignments is None
            else [tuple(each.broker_ids) for each in topic.assignments]
        )
        try:
            planned.append((row, topics.plan_growth(topic.name, topic.count, assignment)))
        except BrokerError as error:
            row.error_code, row.error_message = error.code, error.message
    results = await topics.grow([new for _, new in planned], validate_only=request.validate_only)
    for (row, _), result in zip(planned, results, strict=True):
        if isinstance(result, BrokerError):
            row.error_code, row.error_message = result.code, result.message
    return CreatePartitionsResponse(results=rows)
