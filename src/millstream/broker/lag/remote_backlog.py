"""Asking the leaders on other brokers what their partitions hold for a reader.

A coordinator asks about many positions at once. Those that one broker leads go out in one request
(`Links`). All waits have a common deadline; a question without a response by then has failed.

A broker of an earlier version does not know DescribeBacklog and closes the connection. Its
questions fail like those to a broker that can't be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from millstream.broker.lag.partition_backlog import UNLIMITED, Backlog, Known
from millstream.broker.link import Conversation, Links, known_code
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


class _Inquiry:
    """Questions asked together. `settled` resolves once none of them is open."""

    __slots__ = ("_open", "settled")

    def __init__(self, count: int) -> None:
        self._open = count
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count_down(self) -> None:
        self._open -= 1
        if not self._open and not self.settled.done():
            self.settled.set_result(None)


class Question:
    """What a partition holds after a committed offset. After `RemoteBacklogs.ask`, either `backlog`
    or `error` is set; a response that comes later changes neither."""

    __slots__ = ("_inquiry", "backlog", "error", "known", "leader", "position")

    def __init__(self, leader: int, position: Position, known: Known | None) -> None:
        self.leader = leader
        self.position = position
        self.known = known
        self.backlog: Backlog | None = None
        self.error: ErrorCode | None = None
        self._inquiry: _Inquiry | None = None

    def begin(self, inquiry: _Inquiry) -> None:
        self._inquiry = inquiry

    def succeed(self, backlog: Backlog) -> None:
        if self._inquiry is not None:
            self.backlog = backlog
            self._settle(self._inquiry)

    def fail(self, code: ErrorCode) -> None:
        if self._inquiry is not None:
            self.error = code
            self._settle(self._inquiry)

    def _settle(self, inquiry: _Inquiry) -> None:
        self._inquiry = None
        inquiry.count_down()


class Questions(Conversation[Question]):
    """The `Conversation` about backlogs. No two items of a request have the same position."""

    version = 0
    response = DescribeBacklogResponse

    def request(self, items: Sequence[Question]) -> DescribeBacklogRequest:
        topics: dict[TopicId, _Topic] = {}
        for item in items:
            topic_id, number, committed = item.position
            row = _Topic.Position(partition_index=number, committed_offset=committed)
            if item.known is not None:
                row.known_offset, row.known_timestamp = item.known
            topics.setdefault(topic_id, _Topic(topic_id=topic_id)).positions.append(row)
        return DescribeBacklogRequest(topics=list(topics.values()))

    def answer(self, items: Sequence[Question], response: Any) -> None:
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

    def fail(self, item: Question, code: ErrorCode) -> None:
        item.fail(code)


def backlog_of(row: _Row) -> Backlog:
    headroom: float | None = row.headroom_ms / 1000
    if row.headroom_ms == HEADROOM_UNLIMITED:
        headroom = UNLIMITED
    elif row.headroom_ms == HEADROOM_UNKNOWN:
        headroom = None
    timestamp_ms = None if row.first_timestamp < 0 else row.first_timestamp
    return Backlog(row.offset, row.end_offset, row.has_unread, timestamp_ms, headroom)


class RemoteBacklogs:
    """Asks other brokers. Event loop only."""

    __slots__ = ("_links",)

    def __init__(self, links: Links[Question]) -> None:
        self._links = links

    async def ask(self, questions: Sequence[Question], timeout_s: float) -> None:
        """Send all questions to their leaders, and return when each is settled."""
        inquiry = _Inquiry(len(questions))
        for question in questions:
            question.begin(inquiry)
        for question in questions:
            self._links.put(question.leader, question)
        try:
            async with asyncio.timeout(timeout_s):
                await inquiry.settled
        except TimeoutError:
            for question in questions:
                question.fail(ErrorCode.REQUEST_TIMED_OUT)
