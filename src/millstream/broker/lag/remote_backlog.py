"""Queries to leaders on other brokers for the backlogs of their partitions.

A coordinator queries many positions at once. The positions that one broker leads leave in one
request (`PeerLinks`). All queries have a common deadline; a query without a response by then fails.

A broker of an earlier version does not know DescribeBacklog and closes the connection. Queries to
it fail like queries to a broker that cannot be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from millstream.broker.lag.partition_backlog import UNLIMITED, Backlog, KnownRecord
from millstream.broker.peer_link import PeerApi, PeerLinks, known_code
from millstream.model.error import ErrorCode
from millstream.model.topic import TopicId
from millstream.wire.messages.describe_backlog import (
    HEADROOM_UNKNOWN,
    HEADROOM_UNLIMITED,
    DescribeBacklogRequest,
    DescribeBacklogResponse,
)

#: Topic id, partition and committed offset.
Position: TypeAlias = tuple[TopicId, int, int]

_Topic = DescribeBacklogRequest.Topic
_Row = DescribeBacklogResponse.Topic.Position


class _QueryBatch:
    """Queries sent together. `finished` resolves once each has a result."""

    __slots__ = ("_pending", "finished")

    def __init__(self, count: int) -> None:
        self._pending = count
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count_down(self) -> None:
        self._pending -= 1
        if not self._pending and not self.finished.done():
            self.finished.set_result(None)


class BacklogQuery:
    """Asks for the backlog of one position. After `RemoteBacklogs.query`, either `backlog` or
    `error` is set; a later response changes neither."""

    __slots__ = ("_batch", "backlog", "error", "known", "leader", "position")

    def __init__(self, leader: int, position: Position, known: KnownRecord | None) -> None:
        self.leader = leader
        self.position = position
        self.known = known
        self.backlog: Backlog | None = None
        self.error: ErrorCode | None = None
        self._batch: _QueryBatch | None = None

    def begin(self, batch: _QueryBatch) -> None:
        self._batch = batch

    def succeed(self, backlog: Backlog) -> None:
        if self._batch is not None:
            self.backlog = backlog
            self._finish(self._batch)

    def fail(self, code: ErrorCode) -> None:
        if self._batch is not None:
            self.error = code
            self._finish(self._batch)

    def _finish(self, batch: _QueryBatch) -> None:
        self._batch = None
        batch.count_down()


class BacklogApi(PeerApi[BacklogQuery]):
    """DescribeBacklog. No two items of a request have the same position."""

    version = 0
    response = DescribeBacklogResponse

    def request(self, items: Sequence[BacklogQuery]) -> DescribeBacklogRequest:
        topics: dict[TopicId, _Topic] = {}
        for item in items:
            topic_id, number, committed = item.position
            row = _Topic.Position(partition_index=number, committed_offset=committed)
            if item.known is not None:
                row.known_offset, row.known_timestamp = item.known
            topics.setdefault(topic_id, _Topic(topic_id=topic_id)).positions.append(row)
        return DescribeBacklogRequest(topics=list(topics.values()))

    def complete(self, items: Sequence[BacklogQuery], response: DescribeBacklogResponse) -> None:
        rows: dict[Position, _Row] = {
            (topic.topic_id, row.partition_index, row.committed_offset): row
            for topic in response.topics
            for row in topic.positions
        }
        for item in items:
            row = rows.get(item.position)
            if row is None:
                item.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
            elif row.error_code != ErrorCode.NONE:
                item.fail(known_code(row.error_code))
            else:
                item.succeed(backlog_of(row))

    def fail(self, item: BacklogQuery, code: ErrorCode) -> None:
        item.fail(code)


def backlog_of(row: _Row) -> Backlog:
    """Return the backlog that a row of the response describes."""
    headroom: float | None = row.headroom_ms / 1000
    if row.headroom_ms == HEADROOM_UNLIMITED:
        headroom = UNLIMITED
    elif row.headroom_ms == HEADROOM_UNKNOWN:
        headroom = None
    timestamp_ms = None if row.first_timestamp < 0 else row.first_timestamp
    return Backlog(row.offset, row.end_offset, row.has_unread, timestamp_ms, headroom)


class RemoteBacklogs:
    """Queries other brokers. Event loop only."""

    __slots__ = ("_links",)

    def __init__(self, links: PeerLinks[BacklogQuery]) -> None:
        self._links = links

    async def query(self, queries: Sequence[BacklogQuery], timeout_s: float) -> None:
        """Send all queries to their leaders, and return when each has a result."""
        batch = _QueryBatch(len(queries))
        for query in queries:
            query.begin(batch)
        for query in queries:
            self._links.put(query.leader, query)
        try:
            async with asyncio.timeout(timeout_s):
                await batch.finished
        except TimeoutError:
            for query in queries:
                query.fail(ErrorCode.REQUEST_TIMED_OUT)
