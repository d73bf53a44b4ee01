"""One sweep over the committed offsets of groups: the lag of each group in each partition.

Partitions led here are measured at once. Positions in other partitions are collected, and every
`_WINDOW` positions their leaders are queried: one request for each leader, with a common deadline.
A leader that does not respond is not queried again in the same sweep. Groups at the same position
share a query.

Every committed partition that exists has a row. If its leader cannot be queried, or it has none,
the row is not current (`is_current`) and holds the last known values: records as of the last
response, seconds and headroom adjusted for the time since. A value that was never known is None.

`LagMemory` keeps values from one sweep to the next. It spares leaders the search for a record that
was found before, and holds the last values of leaders that no longer respond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from millstream.broker.lag.partition_backlog import Backlog, KnownRecord, PartitionBacklogs
from millstream.broker.lag.remote_backlog import BacklogQuery, Position, RemoteBacklogs
from millstream.env.clock import Clock
from millstream.groups.committed_offset import CommittedOffset
from millstream.metadata.image import ClusterImage
from millstream.model.error import ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import NO_TOPIC_ID, TopicId
from millstream.replication.replicas import Replicas

#: Positions collected before the leaders on other brokers are queried. Small enough that a broker
#: with cold logs on a slow disk responds in time.
_WINDOW: Final = 250
_RESPONSE_S_MAX: Final = 5.0
#: Errors after which a leader is not queried again.
_SILENCE: Final = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)


class PartitionLag(NamedTuple):
    """The lag of a group in one partition. A value that is unknown is None."""

    topic: str
    partition: int
    committed_offset: int
    end_offset: int | None
    records: int | None
    #: None also if the records have no timestamp, or the log cannot be read.
    seconds: float | None
    #: None also if the log cannot be read.
    headroom_seconds: float | None
    #: Whether the values are the leader's, from this sweep.
    is_current: bool = True


class RowReceiver(Protocol):
    """Receives the rows of one group."""

    def add(self, row: PartitionLag) -> None: ...


class _LastResponse(NamedTuple):
    """The last response of a leader for a position, with its monotonic time."""

    backlog: Backlog
    received_at: float


@dataclass(slots=True)
class LagMemory:
    """Values kept from one sweep to the next: first unread records, and last known values."""

    #: Of positions that were not read to the end.
    responses: dict[Position, _LastResponse] = field(default_factory=dict)
    #: The end offsets of other brokers' partitions.
    ends: dict[tuple[TopicId, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LagSources:
    """The sources that a sweep measures with."""

    node_id: int
    image: Callable[[], ClusterImage]
    replicas: Replicas
    local: PartitionBacklogs
    remote: RemoteBacklogs
    clock: Clock


@dataclass(slots=True)
class _PendingRow:
    """A row that waits for its leader's response."""

    receiver: RowReceiver
    topic: str
    position: Position
    backlog: Backlog | None = None
    #: The broker to query; NO_LEADER if there is none.
    leader: int = NO_LEADER


class LagSweep:
    """Call `add` for each committed offset, then `finish`. Event loop only."""

    __slots__ = ("_before", "_pending", "_silent", "_sources", "memory", "waited_seconds")

    def __init__(self, sources: LagSources, before: LagMemory) -> None:
        self._sources = sources
        self._before = before
        #: Rows that their receivers do not have yet.
        self._pending: list[_PendingRow] = []
        #: Leaders that did not respond in this sweep.
        self._silent: dict[int, None] = {}
        self.memory = LagMemory()
        #: Time spent on waiting for leaders.
        self.waited_seconds = 0.0

    async def add(
        self, receiver: RowReceiver, topic: str, number: int, committed: CommittedOffset
    ) -> bool:
        """Measure one position; `receiver` gets its row now or later, or never if the partition
        does not exist. Return whether all rows were delivered."""
        sources = self._sources
        found = sources.image().topic(topic)
        if (
            found is not None
            and 0 <= number < len(found.partitions)
            and committed.topic_id in (found.topic_id, NO_TOPIC_ID)
        ):
            row = _PendingRow(receiver, topic, (found.topic_id, number, committed.offset))
            partition = sources.replicas.get(topic, number)
            if partition is not None and partition.is_leader:
                known = self._known(row.position)
                row.backlog = sources.local.measure(partition, committed.offset, known)
                self._remember(row.position, row.backlog)
            else:
                row.leader = found.partitions[number].leader
            self._pending.append(row)
        await sources.local.pause_if_due()
        if len(self._pending) < _WINDOW:
            return False
        await self.finish()
        return True

    async def finish(self) -> None:
        """Query the leaders, and deliver all rows."""
        rows, self._pending = self._pending, []
        await self._query(rows)
        for row in rows:
            row.receiver.add(self._row(row))

    async def _query(self, rows: list[_PendingRow]) -> None:
        unreachable = (NO_LEADER, self._sources.node_id)
        queries: dict[Position, BacklogQuery] = {}
        for row in rows:
            position = row.position
            if row.backlog is None and row.leader not in unreachable and position not in queries:
                queries[position] = BacklogQuery(row.leader, position, self._known(position))
        sent = [each for each in queries.values() if each.leader not in self._silent]
        if not sent:
            return
        clock = self._sources.clock
        started_at = clock.monotonic()
        await self._sources.remote.query(sent, _RESPONSE_S_MAX)
        self.waited_seconds += clock.monotonic() - started_at
        self._silent |= {each.leader: None for each in sent if each.error in _SILENCE}
        for query in sent:
            if query.backlog is not None:
                topic_id, number, _ = query.position
                self._remember(query.position, query.backlog)
                self.memory.ends[topic_id, number] = query.backlog.end_offset
        for row in rows:
            if row.backlog is None and row.position in queries:
                row.backlog = queries[row.position].backlog

    # Memory

    def _last_response(self, position: Position) -> _LastResponse | None:
        return self.memory.responses.get(position) or self._before.responses.get(position)

    def _known(self, position: Position) -> KnownRecord | None:
        response = self._last_response(position)
        if response is None or response.backlog.timestamp_ms is None:
            return None
        return KnownRecord(response.backlog.offset, response.backlog.timestamp_ms)

    def _remember(self, position: Position, backlog: Backlog) -> None:
        if backlog.offset < backlog.end_offset:
            self.memory.responses[position] = _LastResponse(
                backlog, self._sources.clock.monotonic()
            )

    # Rows

    def _row(self, row: _PendingRow) -> PartitionLag:
        backlog = row.backlog
        is_current = backlog is not None
        if backlog is None:
            backlog = self._last_known(row.position)
        _, number, committed = row.position
        if backlog is None:
            return PartitionLag(row.topic, number, committed, None, None, None, None, False)
        seconds: float | None = 0.0
        if backlog.has_unread:
            seconds = self._age(backlog.timestamp_ms)
        return PartitionLag(
            row.topic,
            number,
            committed,
            backlog.end_offset,
            backlog.records,
            seconds,
            backlog.headroom_seconds,
            is_current,
        )

    def _age(self, timestamp_ms: int | None) -> float | None:
        if timestamp_ms is None:
            return None
        return max(self._sources.clock.wall_ms() - timestamp_ms, 0) / 1000

    def _last_known(self, position: Position) -> Backlog | None:
        """Return the last response of the leader, adjusted for the time since."""
        topic_id, number, committed = position
        key = (topic_id, number)
        end = self.memory.ends.get(key)
        if end is None:
            end = self._before.ends.get(key)
        if end is not None:
            self.memory.ends[key] = end
        response = self._last_response(position)
        if response is not None:
            self.memory.responses[position] = response
            backlog, received_at = response
            headroom = backlog.headroom_seconds
            if headroom is not None:
                passed = self._sources.clock.monotonic() - received_at
                headroom = max(headroom - passed, 0.0)
            end = backlog.end_offset if end is None else max(end, backlog.end_offset)
            return backlog._replace(end_offset=end, headroom_seconds=headroom)
        if end is None:
            return None
        if committed >= end:
            return Backlog(committed, end)
        return Backlog(committed, end, True, None, None)
