"""DescribeBacklog: version 0. The records and bytes of partitions after committed offsets.

This API is Millstream's own, and ApiVersions does not list it: a group coordinator asks leaders on
other brokers for the lag of its groups. NOT_LEADER_OR_FOLLOWER if this broker does not lead the
partition or does not know the topic. Long requests yield to the event loop. A request with more
than `POSITIONS_MAX` positions closes its connection.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any, Final

from millstream.broker.context import CloseConnectionError, Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import error_rows
from millstream.broker.lag.partition_backlog import Backlog, KnownRecord
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.wire.messages.describe_backlog import (
    HEADROOM_UNKNOWN,
    HEADROOM_UNLIMITED,
    DescribeBacklogRequest,
    DescribeBacklogResponse,
)

POSITIONS_MAX: Final = 5000
#: Longer than any retention, and within the range of an int64.
_HEADROOM_MS_MAX: Final = 2**62

_Topic = DescribeBacklogResponse.Topic


def handle(
    request: DescribeBacklogRequest, context: Context
) -> Coroutine[Any, Any, DescribeBacklogResponse]:
    context.require_cluster(Operation.CLUSTER_ACTION)
    count = sum(len(topic.positions) for topic in request.topics)
    if count > POSITIONS_MAX:
        raise CloseConnectionError(f"DescribeBacklog for {count} positions")
    return _describe(request, context)


def _error_response(
    request: DescribeBacklogRequest, context: Context, code: ErrorCode
) -> DescribeBacklogResponse:
    response = DescribeBacklogResponse()
    for topic in request.topics:
        rows = error_rows(
            _Topic.Position,
            topic.positions,
            ["partition_index", "committed_offset"],
            error_code=code,
        )
        response.topics.append(_Topic(topic_id=topic.topic_id, positions=rows))
    return response


API: Final = ApiEntry(
    DescribeBacklogRequest,
    DescribeBacklogResponse,
    versions=(0, 0),
    handle=handle,
    error_response=_error_response,
    access=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
)


async def _describe(request: DescribeBacklogRequest, context: Context) -> DescribeBacklogResponse:
    backlogs, replicas = context.services.backlogs, context.services.replicas
    response = DescribeBacklogResponse()
    for topic in request.topics:
        found = _Topic(topic_id=topic.topic_id)
        response.topics.append(found)
        for wanted in topic.positions:
            row = _Topic.Position(
                partition_index=wanted.partition_index, committed_offset=wanted.committed_offset
            )
            found.positions.append(row)
            partition = replicas.find_by_id(topic.topic_id, wanted.partition_index)
            if partition is None or not partition.is_leader:
                row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                known = None
                if wanted.known_timestamp >= 0:
                    known = KnownRecord(wanted.known_offset, wanted.known_timestamp)
                _fill(row, backlogs.measure(partition, wanted.committed_offset, known))
            await backlogs.pause_if_due()
    return response


def _fill(row: _Topic.Position, backlog: Backlog) -> None:
    row.offset, row.end_offset = backlog.offset, backlog.end_offset
    row.has_unread = backlog.has_unread
    if backlog.timestamp_ms is not None:
        row.first_timestamp = backlog.timestamp_ms
    headroom = backlog.headroom_seconds
    if headroom is None:
        row.headroom_ms = HEADROOM_UNKNOWN
    elif math.isinf(headroom):
        row.headroom_ms = HEADROOM_UNLIMITED
    else:
        row.headroom_ms = min(int(headroom * 1000), _HEADROOM_MS_MAX)
