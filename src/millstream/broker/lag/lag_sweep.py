"""One look at the committed offsets of groups: how far each group is behind in each partition.

Partitions that this broker leads are looked at as they come. Positions in other partitions gather,
and their leaders are asked together once there are `_WINDOW`: one request for each leader, with a
common deadline. A leader that does not respond is not asked again in the same sweep. Several groups
at one position share a question.

Every committed partition that exists has a row. If its leader can't be asked, or there is none, the
row says so (`is_current`) and holds what is known from before: records as of the last response,
seconds and headroom carried on with time. What was never known is None.

`Memory` is what a sweep leaves to the next one. It spares leaders the search for a record that was
found before, and holds the values of leaders that no longer respond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from millstream.broker.lag.partition_backlog import Backlog, Known, PartitionBacklogs
from millstream.broker.lag.remote_backlog import Position, Question, RemoteBacklogs
from millstream.env.clock import Clock
from millstream.groups.offset import CommittedOffset
from millstream.metadata.image import ClusterImage
from millstream.model.error import ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import NO_TOPIC_ID, TopicId
from millstream.replication.replicas import Replicas

#: Positions that are looked at before leaders are asked about those of other brokers. If all were
#: in cold logs of one slow disk, its broker could still respond in time.
_WINDOW: Final = 250
_RESPONSE_S_MAX: Final = 5.0
#: Errors after which a leader is not asked again.
_SILENCE: Final = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)


class PartitionLag(NamedTuple):
    """How far a group is behind in one partition. None is what is not known."""

    topic: str
    partition: int
    committed_offset: int
    end_offset: int | None
    records: int | None
    #: None also where the records have no time, or the log can't be read.
    seconds: float | None
    #: None also where the log can't be read.
    headroom_seconds: float | None
    #: Whether the partition's leader said so in this sweep.
    is_current: bool = True


class RowTaker(Protocol):
    """Somebody who wants the rows of one group."""

    def add(self, row: PartitionLag) -> None: ...


class _Told(NamedTuple):
    """What a leader said of a position, and when by the monotonic clock."""

    backlog: Backlog
    told_at: float


@dataclass(slots=True)
class Memory:
    """What a sweep leaves to the next: times of first unread records, and last known values."""

    #: Positions that were not read to the end.
    told: dict[Position, _Told] = field(default_factory=dict)
    #: The end offsets of other brokers' partitions.
    ends: dict[tuple[TopicId, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LagSources:
    """Where a sweep learns what partitions hold."""

    node_id: int
    image: Callable[[], ClusterImage]
    replicas: Replicas
    here: PartitionBacklogs
    elsewhere: RemoteBacklogs
    clock: Clock


@dataclass(slots=True)
class _Look:
    taker: RowTaker
    topic: str
    position: Position
    backlog: Backlog | None = None
    #: The broker to ask; NO_LEADER if there is none.
    leader: int = NO_LEADER


class Sweep:
    """`look` for each committed offset, then `settle`. Event loop only."""

    __slots__ = ("_before", "_looks", "_silent", "_sources", "memory", "waited_seconds")

    def __init__(self, sources: LagSources, before: Memory) -> None:
        self._sources = sources
        self._before = before
        #: Positions whose takers have no row yet.
        self._looks: list[_Look] = []
        #: Leaders that did not respond in this sweep.
        self._silent: dict[int, None] = {}
        self.memory = Memory()
        #: Time spent on waiting for leaders.
        self.waited_seconds = 0.0

    async def look(
        self, taker: RowTaker, topic: str, number: int, committed: CommittedOffset
    ) -> bool:
        """Have `taker` given a row, now or later, unless there is no such partition. Returns
        whether no taker waits any more."""
        sources = self._sources
        found = sources.image().topic(topic)
        if (
            found is not None
            and 0 <= number < len(found.partitions)
            and committed.topic_id in (found.topic_id, NO_TOPIC_ID)
        ):
            look = _Look(taker, topic, (found.topic_id, number, committed.offset))
            partition = sources.replicas.get(topic, number)
            if partition is not None and partition.is_leader:
                known = self._known(look.position)
                look.backlog = sources.here.look(partition, committed.offset, known)
                self._remember(look.position, look.backlog)
            else:
                look.leader = found.partitions[number].leader
            self._looks.append(look)
        await sources.here.give_way()
        if len(self._looks) < _WINDOW:
            return False
        await self.settle()
        return True

    async def settle(self) -> None:
        """Ask the leaders, and give every taker its rows."""
        looks, self._looks = self._looks, []
        await self._ask(looks)
        for look in looks:
            look.taker.add(self._row(look))

    async def _ask(self, looks: list[_Look]) -> None:
        nobody = (NO_LEADER, self._sources.node_id)
        questions: dict[Position, Question] = {}
        for look in looks:
            position = look.position
            if look.backlog is None and look.leader not in nobody and position not in questions:
                questions[position] = Question(look.leader, position, self._known(position))
        asked = [each for each in questions.values() if each.leader not in self._silent]
        if not asked:
            return
        clock = self._sources.clock
        started_at = clock.monotonic()
        await self._sources.elsewhere.ask(asked, _RESPONSE_S_MAX)
        self.waited_seconds += clock.monotonic() - started_at
        self._silent |= {each.leader: None for each in asked if each.error in _SILENCE}
        for question in asked:
            if question.backlog is not None:
                topic_id, number, _ = question.position
                self._remember(question.position, question.backlog)
                self.memory.ends[topic_id, number] = question.backlog.end_offset
        for look in looks:
            if look.backlog is None and look.position in questions:
                look.backlog = questions[look.position].backlog

    # Memory

    def _told(self, position: Position) -> _Told | None:
        return self.memory.told.get(position) or self._before.told.get(position)

    def _known(self, position: Position) -> Known | None:
        told = self._told(position)
        if told is None or told.backlog.timestamp_ms is None:
            return None
        return Known(told.backlog.offset, told.backlog.timestamp_ms)

    def _remember(self, position: Position, backlog: Backlog) -> None:
        if backlog.offset < backlog.end_offset:
            self.memory.told[position] = _Told(backlog, self._sources.clock.monotonic())

    # Rows

    def _row(self, look: _Look) -> PartitionLag:
        backlog = look.backlog
        is_current = backlog is not None
        if backlog is None:
            backlog = self._last_known(look.position)
        _, number, committed = look.position
        if backlog is None:
            return PartitionLag(look.topic, number, committed, None, None, None, None, False)
        seconds: float | None = 0.0
        if backlog.has_unread:
            seconds = self._age(backlog.timestamp_ms)
        return PartitionLag(
            look.topic,
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
        """What the leader said before, as it would be now."""
        topic_id, number, committed = position
        place = (topic_id, number)
        end = self.memory.ends.get(place)
        if end is None:
            end = self._before.ends.get(place)
        if end is not None:
            self.memory.ends[place] = end
        told = self._told(position)
        if told is not None:
            self.memory.told[position] = told
            backlog, told_at = told
            headroom = backlog.headroom_seconds
            if headroom is not None:
                passed = self._sources.clock.monotonic() - told_at
                headroom = max(headroom - passed, 0.0)
            end = backlog.end_offset if end is None else max(end, backlog.end_offset)
            return backlog._replace(end_offset=end, headroom_seconds=headroom)
        if end is None:
            return None
        if committed >= end:
            return Backlog(committed, end)
        return Backlog(committed, end, True, None, None)
